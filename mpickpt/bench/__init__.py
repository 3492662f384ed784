"""``mpickpt bench``: what a user's own file system gives, and what of it mpickpt reaches.

`plan` says what is measured, `limits` measures what the machine gives, `measure` what mpickpt takes, both in the
owners; `owner` is the program that these run, `start` starts them, `told` makes a table and a plot of the figures.
"""
