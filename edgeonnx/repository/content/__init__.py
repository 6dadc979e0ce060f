"""What travels: blobs, and differences to the contents of earlier releases."""
