"""The FAISS index: kinds are built and measured on the catalogue itself; the cheapest that holds the floor is taken."""
