"""From a decoder (GPT-2, Llama and its like) to a graph of the contract in `edgeonnx.spec.generation`."""
