// Text files built into the library (see vamp_embed).
#pragma once

namespace vamp {

extern const char* const kDashboardJs;

// openapi/*.json
extern const char* const kOpenApiPaths;
extern const char* const kOpenApiParameters;
extern const char* const kOpenApiFields;
extern const char* const kOpenApiRequests;
extern const char* const kOpenApiResponses;

}  // namespace vamp
