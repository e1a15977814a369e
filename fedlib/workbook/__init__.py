MIME = "application/vnd.fedlib.claims+json"  # the output of a page that holds its claims
HEADLINE = "application/vnd.fedlib.headline+json"  # one line on what a page stands on, kept in its first cell
