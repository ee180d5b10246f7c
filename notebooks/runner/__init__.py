"""`labkit run`, `reproduce` and `report`: notebooks executed by papermill into a folder of results, with a scoreboard."""
