"""What runs inside serving pods: decode contract, router, engine launcher."""
