"""The league: who is how strong, who plays whom, and who is kept."""
