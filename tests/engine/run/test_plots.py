"""The curves of a run, as they are drawn."""

from engine.run.plots import best_epoch, curve, new_figure, plot_curve, write_png


def test_rows_without_a_value_are_left_out():
    rows = [{"epoch": "1", "val_top1": "10.5"}, {"epoch": "2", "val_top1": ""}, {"epoch": "3", "val_top1": "20"}]
    assert curve(rows, "val_top1") == [(1, 10.5), (3, 20.0)]


def test_the_best_epoch_has_the_highest_top1_then_the_lowest_loss():
    rows = [("1", "10", "1.5"), ("2", "30", "1.2"), ("3", "30", "1.1"), ("4", "30", "1.1"), ("5", "", "")]
    rows = [dict(zip(("epoch", "val_top1", "val_loss"), row, strict=True)) for row in rows]
    assert best_epoch(rows) == (3, 30.0) and best_epoch(rows[4:]) is None


def test_epochs_are_whole_numbers_and_names_are_no_formulas(tmp_path):
    figure, axes = new_figure("epoch", "loss", "cost$a_{$")
    plot_curve(axes, [(1, 2.0), (2, 1.0)], "$x^{$")
    axes.legend()
    write_png(figure, tmp_path / "plot.png")
    ticks = axes.xaxis.get_major_locator().tick_values(1, 2)
    assert all(tick == round(tick) for tick in ticks)
