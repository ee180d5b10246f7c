"""Real ranks (`ranks`) and the collectives between them (`collectives`)."""
