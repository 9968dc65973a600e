// The page's own text files (src/report/page), built into the library by embed_text.cmake.
#pragma once

namespace vamp {

extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kChartsJs;
extern const char* const kPageJs;
extern const char* const kDecisionsJs;

}  // namespace vamp
