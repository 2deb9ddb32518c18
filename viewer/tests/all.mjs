// Every test of the page, in the order in which they run.
import './figures.mjs';
import './views.mjs';
import './chart.mjs';
import './address.mjs';
import './flame.mjs';
import './golden.mjs';
import './recorded.mjs';
