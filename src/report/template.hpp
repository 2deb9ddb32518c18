// SPDX-License-Identifier: Apache-2.0
// The page without its figures: viewer/ as it was when this was built.
#pragma once

#include <string_view>

namespace weir { inline namespace v0 { namespace report {

/// viewer/page.html, in which @style@, @script@ and the data's names stand for the rest.
extern const std::string_view page_template;
extern const std::string_view page_style;
extern const std::string_view page_script;

}}}  // namespace weir::v0::report
