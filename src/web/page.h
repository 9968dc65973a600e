// Our pages: one file each that needs nothing else. They share style, charts and widgets.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace vamp {

// A page of the title, a script that fills it, and the data that the script finds in the element
// "data". Text in `data` that is no UTF-8 is replaced.
std::string make_page(const std::string& title, std::string_view script,
                      const nlohmann::json& data);

}  // namespace vamp
