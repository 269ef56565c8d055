"""The Runlane server: durable sessions for AI agents."""
