"""Steps for ever, a few thousand a second, until somebody kills it."""

import topout

while True:
    with topout.span("work"):
        sum(range(200))
    topout.step()
