"""The nouns: instances, counts, beliefs and histories."""
