"""From what users did to an instance."""
