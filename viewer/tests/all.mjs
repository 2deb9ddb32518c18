// SPDX-License-Identifier: Apache-2.0
// Every test of the page, in the order in which they run.
import './figures.mjs';
import './views.mjs';
import './chart.mjs';
import './comparison.mjs';
import './card.mjs';
import './suspended.mjs';
import './readers.mjs';
import './made.mjs';
import './drop.mjs';
import './address.mjs';
import './flame.mjs';
import './golden.mjs';
import './recorded.mjs';
