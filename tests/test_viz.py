"""Figures: the style, the size, the text alternative, the data table, and the same bytes each time."""

import base64
import html
import io
import re
import subprocess
import sys

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from PIL import Image

from labkit.errors import RequestError
from labkit.paths import root
from labkit.teach import explore, viz

internals = sys.modules["labkit.teach.explore"]
BATCHES = [32, 64, 128, 256, 512, 1024]


def drawing():
    fig, ax = viz.figure()
    ax.plot(BATCHES, [90, 91, 92, 91, 88, 80], color=viz.LITERATURE)
    ax.plot(BATCHES, [89, 90, 91, 90, 86, 77], color=viz.RECORDED)
    viz.direct_label(ax, 1024, 80, "literature", viz.LITERATURE)
    viz.log2_axis(ax, BATCHES, "batch size")
    return fig, ax


def test_the_same_figure_gives_the_same_small_palette_png_without_date_or_program():
    first, second = viz.render(drawing()[0]), viz.render(drawing()[0])
    assert first == second
    image = Image.open(io.BytesIO(first))
    assert image.mode == "P" and not {"Software", "Date", "Creation Time"} & set(image.info)
    assert len(first) < 30_000


def test_what_the_reader_set_before_does_not_change_the_picture():
    import matplotlib

    expected = viz.render(drawing()[0])
    with matplotlib.rc_context({"figure.dpi": 50, "savefig.bbox": "tight", "axes.facecolor": "black", "font.size": 20}):
        assert viz.render(drawing()[0]) == expected


def test_the_fixed_colours_survive_the_palette():
    pixels = np.asarray(Image.open(io.BytesIO(viz.render(drawing()[0]))).convert("RGB")).reshape(-1, 3)
    for colour in (viz.LITERATURE, viz.RECORDED):
        wanted = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
        assert (np.abs(pixels.astype(int) - wanted).max(axis=1) <= 3).sum() > 200


def test_series_differ_in_marker_and_line_style_and_avoid_the_fixed_colours():
    fig, ax = viz.figure()
    lines = [ax.plot([1, 2])[0] for _ in viz.SERIES]
    for property_of in (lambda line: line.get_color(), lambda line: line.get_marker()):
        assert len({property_of(line) for line in lines}) == len(lines)
    looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines)
    assert not {line.get_color() for line in lines} & {viz.LITERATURE, viz.RECORDED, viz.YOURS}


def test_a_batch_axis_is_log2_with_plain_numbers():
    fig, ax = drawing()
    viz.render(fig)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["32", "64", "128", "256", "512", "1024"]
    assert ax.get_xscale() == "log" and ax.xaxis.get_transform().base == 2 and ax.get_xlabel() == "batch size"
    with pytest.raises(RequestError, match="positive"):
        viz.log2_axis(ax, [0, 1], "batch size")


def test_a_long_curve_gets_few_markers():
    fig, ax = viz.figure()
    (line,) = ax.plot(range(1000))
    viz.render(fig)
    assert len(range(0, 1000, line.get_markevery())) <= 15


@pytest.mark.parametrize("none", ["", "none", "None", " "])
def test_markers_that_no_line_joins_are_data_and_stay(none):
    fig, ax = viz.figure()
    (line,) = ax.plot(range(100), range(100), linestyle=none, marker="o")
    viz.render(fig)
    assert line.get_markevery() is None


@pytest.mark.parametrize("size", [{"width": 7}, {"height": 5}])
def test_a_figure_larger_than_the_page_is_refused(size):
    with pytest.raises(RequestError, match="6.5 x 4.0"):
        viz.figure(**size)


@pytest.mark.parametrize("alt", ["", "  \n", None])
def test_a_figure_without_a_text_alternative_is_refused(alt):
    with pytest.raises(RequestError, match="text alternative"):
        viz.show(drawing()[0], alt=alt)


@settings(deadline=None)
@given(st.text(min_size=1))
def test_the_visible_line_shows_any_text_and_no_markup_of_its_own(alt):
    line = viz.caption(alt)
    inner = line.removeprefix("<p><em>").removesuffix("</em></p>")
    assert html.unescape(inner) == html.unescape(html.escape(alt)) and "<" not in inner


def test_the_data_table_is_rounded_and_cut():
    table = viz.caption("a", pd.DataFrame({"batch": range(50), "accuracy": np.full(50, 2 / 3)}))
    assert "<details><summary>data</summary>" in table and "0.6667<" in table
    assert table.count("<tr>") == 40 and "and 10 more rows" in table  # the header's row has a style of its own
    assert "more rows" not in viz.caption("a", {"batch": [1]})


def test_outside_a_notebook_show_returns_quietly(capsys):
    assert viz.show(drawing()[0], alt="a") is None
    assert capsys.readouterr().out == ""


def test_importing_the_package_imports_no_plotting():
    code = "import sys, labkit, labkit.teach; sys.exit(bool({'matplotlib', 'torch', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=root()).returncode == 0


def test_an_executed_notebook_holds_image_alt_and_visible_line_and_one_explorer_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(root()))
    show = """
import matplotlib.pyplot as plt
from labkit.teach import explore, viz
fig, ax = plt.subplots(figsize=(3, 2))
viz.show(fig, alt="loss < 1 & falling", data={"loss": [1.0, 0.5]})
"""
    explorer = """
def draw(batch, rule):
    fig, ax = viz.figure(width=3, height=2)
    ax.plot([batch])
    return fig, f"batch {batch}, {rule}"
explore(draw, interactive=True, batch=[1, 2, 4], rule=("sqrt", ["linear", "sqrt"]))
"""
    cells = [nbformat.v4.new_code_cell(text) for text in (show, explorer)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    image, line = notebook.cells[0].outputs
    assert image.metadata["image/png"]["alt"] == image.data["text/plain"] == "loss < 1 & falling"
    assert base64.b64decode(image.data["image/png"]).startswith(b"\x89PNG")
    assert line.data["text/html"].startswith("<p><em>loss &lt; 1 &amp; falling</em></p>")
    assert "<details>" in line.data["text/html"]
    # Nobody can move a slider in a batch run, so none is left behind, even when `interactive` was not switched off.
    assert [list(output.data) for output in notebook.cells[1].outputs] == [["image/png", "text/plain"], ["text/html"]]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "batch 1, sqrt"
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("interactive, widgets", [(True, 1), (False, 0)])
def test_a_reader_at_a_live_kernel_gets_controls_unless_switched_off(interactive, widgets, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(root()))
    manager, client = start_new_kernel()
    kinds = []

    def seen(message):
        if message["msg_type"] == "display_data":
            kinds.extend(message["content"]["data"])

    code = f"""
from labkit.teach import explore
explore(lambda batch: None, interactive={interactive}, batch=[1, 2, 4])
"""
    try:
        reply = client.execute_interactive(code, allow_stdin=True, output_hook=seen, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok"
    assert kinds.count("application/vnd.jupyter.widget-view+json") == widgets


def test_moving_a_control_draws_again_with_the_new_value():
    seen = []
    box = internals.controls(lambda **values: seen.append(values), {"batch": (1, [1, 2, 4]), "rule": ("a", ["a", "b"])})
    slider, menu, _ = box.children
    assert (type(slider).__name__, type(menu).__name__) == ("SelectionSlider", "Dropdown")
    slider.value = 4
    menu.value = "b"
    assert seen == [{"batch": 4, "rule": "a"}, {"batch": 4, "rule": "b"}]


def test_explore_draws_the_first_value_or_the_named_default():
    seen = []
    explore(lambda **values: seen.append(values), interactive=False, batch=[8, 16], rate=(0.2, [0.1, 0.2]))
    assert seen == [{"batch": 8, "rate": 0.2}]


@pytest.mark.parametrize(
    "choices, message",
    [({"batch": []}, "'batch' needs"), ({"batch": (3, [1, 2])}, "3 is not among"), ({"batch": 3}, "'batch' needs")],
)
def test_explore_refuses_choices_that_cannot_be_drawn(choices, message):
    with pytest.raises(RequestError, match=message):
        explore(lambda **values: None, interactive=False, **choices)


def test_explore_refuses_a_figure_without_words():
    with pytest.raises(RequestError, match=re.escape("return (figure, alt)")):
        explore(lambda batch: drawing()[0], interactive=False, batch=[1])
