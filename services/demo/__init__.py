"""`feedline demo`: a real catalogue, a snapshot, the service, and a shopper who is scripted."""
