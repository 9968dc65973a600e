// The API's description as OpenAPI 3.1: what GET /openapi.json answers.
#pragma once

#include <nlohmann/json.hpp>

namespace vamp {

class Service;

// Paths and schemas lie in openapi/*.json. Added here: each route's key and errors, from the table
// of routes, and the limits of this server, which flags and model set. Limits that are the model's
// are left out until it is loaded.
nlohmann::ordered_json make_openapi(const Service& service);

}  // namespace vamp
