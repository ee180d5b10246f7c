"""Models of clusters that are not here: closed forms and virtual time. What they give is never a measurement."""
