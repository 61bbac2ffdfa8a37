"""Who may ask what: tokens, what they are for, and where they come from (reference 16)."""
