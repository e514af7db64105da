"""Keys of the results of games, as several commands print them."""

WINS = {"games", "wins", "draws", "losses", "win_rate", "win_rate_low", "win_rate_high"}
RETURNS = {"mean_return", "mean_return_low", "mean_return_high", "mean_length"}
