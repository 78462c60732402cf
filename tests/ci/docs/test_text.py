from ci.docs.text import table


def test_cells_keep_to_their_row() -> None:
    assert table(("a", "b"), [("x|y", "two\nlines")]) == "| a | b |\n|---|---|\n| x\\|y | two lines |\n"
