"""HTTP beside gRPC: REST, metrics, health and one page for a person."""
