"""The harness itself: a notebook runs in a real JupyterLab, and a widget speaks in both directions."""

import sys

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import write_notebook

pytestmark = pytest.mark.timeout(300)

CELLS = [
    """
import anywidget, traitlets
class Counter(anywidget.AnyWidget):
    _esm = '''
    export default { render({ model, el }) {
      const button = document.createElement('button');
      button.className = 'harness-button';
      const show = () => { button.textContent = `count ${model.get('count')}`; };
      button.onclick = () => { model.set('count', model.get('count') + 1); model.save_changes(); };
      model.on('change:count', show); show(); el.append(button);
    } };
    '''
    count = traitlets.Int(0).tag(sync=True)
counter = Counter()
counter
""",
    "counter.count += 40",
    "import sys; print('kernel sees', counter.count, sys.executable)",
    "1 / 0",
]


def test_a_widget_counts_in_the_page_and_in_the_kernel(jupyter, open_notebook, screenshot):
    opened = open_notebook(write_notebook(jupyter.root / "harness.ipynb", CELLS).name)
    for number in range(3):
        opened.run_cell(number)
    button = opened.see(".harness-button", "count 40")
    button.click()
    expect(button).to_contain_text("count 41")
    opened.run_cell(2)
    expect(opened.output(2)).to_contain_text("kernel sees 41")
    expect(opened.output(2)).to_contain_text(sys.executable)
    screenshot(opened.page, "harness")
    assert opened.failures() == []
    opened.run_cell(3)
    assert opened.failures() == ["ZeroDivisionError: division by zero"]
    assert opened.errors == []
