// The text files of src/web, built into the library.
#pragma once

namespace vamp {

extern const char* const kPageHtml;
extern const char* const kStyleCss;
extern const char* const kChartsJs;
extern const char* const kWidgetsJs;

}  // namespace vamp
