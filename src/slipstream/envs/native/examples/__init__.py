"""Native games that show the API, each in one short file."""
