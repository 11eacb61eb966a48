"""What the nightly job and the online service share. Free of torch and of DuckDB."""
