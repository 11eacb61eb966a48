"""The wire contract: `feed.proto` and what `make proto` generates from it."""
