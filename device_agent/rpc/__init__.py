"""The gRPC side of the agent: the Open Inference Protocol v2 as `inference.GRPCInferenceService`.

Optional: it needs the extra `grpc` (grpcio, protobuf), and nothing here is imported unless `server.grpc_port` is set.
"""

from device_agent.rpc.server import GrpcServer, serve_grpc

__all__ = ("GrpcServer", "serve_grpc")
