#include "server/openapi.h"

#include <boost/algorithm/string/case_conv.hpp>

#include "server/api/fields.h"
#include "server/api/routes.h"
#include "server/assets.h"

namespace vamp {
namespace {

constexpr std::string_view kSchemas = "#/components/schemas/";

Json reference(const std::string& schema) {
  return Json::object({{"$ref", std::string(kSchemas) + schema}});
}

Json content(const std::string& type, Json schema) {
  return Json::object({{type, Json::object({{"schema", std::move(schema)}})}});
}

// What `allOf` adds up to, written out: readers of descriptions know plain objects best.
Json flattened(const Json& schemas, const std::string& name) {
  Json schema = schemas.at(name);
  const Json parts = schema.value("allOf", Json::array());
  schema.erase("allOf");
  for (const Json& part : parts) {
    const Json base =
        flattened(schemas, part.at("$ref").get<std::string>().substr(kSchemas.size()));
    for (const auto& [key, value] : base.at("properties").items()) {
      if (!schema["properties"].contains(key)) schema["properties"][key] = value;
    }
    if (!base.contains("required")) continue;
    for (const Json& key : base.at("required")) schema["required"].push_back(key);
  }
  return schema;
}

// "$name" becomes the value of that name; where there is none yet, its member goes.
void fill_in(const Json& values, Json& json) {
  for (auto it = json.begin(); it != json.end();) {
    if (it->is_structured()) fill_in(values, *it);
    const bool named = it->is_string() && it->get_ref<const std::string&>().starts_with('$');
    if (named) {
      const auto value = values.find(it->get_ref<const std::string&>().substr(1));
      if (value == values.end()) {
        it = json.erase(it);
        continue;
      }
      *it = *value;
    }
    ++it;
  }
}

Json limits(const Service& service) {
  const ServerOptions& options = service.options();
  Json models = options.served_names;
  models.push_back("");
  models.push_back(nullptr);
  Json values = {{"models", std::move(models)},
                 {"max_logprobs", options.max_logprobs},
                 {"max_choices", options.max_choices},
                 {"max_stop_strings", options.max_stop_strings}};
  const Service::State state = service.state();
  if (state == Service::State::kReady || state == Service::State::kStopping) {
    values["last_token_id"] = service.model().vocab_size - 1;
    values["max_output_tokens"] = service.model().max_model_len - 1;
  }
  return values;
}

Json success(const Json& operation) {
  Json answer = {{"description", "the answer"}};
  const Json& schema = operation.at("response");
  if (schema.is_null()) return answer;
  const std::string name = schema.get<std::string>();
  if (name.find('/') != std::string::npos) {  // a type of content, not a schema
    answer["content"] = content(name, Json::object({{"type", "string"}}));
    return answer;
  }
  answer["content"] = content("application/json", reference(name));
  if (operation.value("streams", false))
    answer["content"].update(content("text/event-stream", reference("StreamEvent")));
  return answer;
}

// From an operation as openapi/paths.json has it to one of OpenAPI.
Json operation_of(const Route& route, const Json& source, bool keys) {
  Json operation = source;
  Json& responses = operation["responses"];
  const char* error_schema =
      std::string_view(route.path).starts_with("/v1/messages") ? "AnthropicError" : "Error";
  const auto fails = [&](const char* status, const char* why) {
    responses[status] = {{"description", why},
                         {"content", content("application/json", reference(error_schema))}};
  };
  responses["200"] = success(source);
  fails("400", "the request is at fault");
  if (route.needs_key && keys) {
    operation["security"] = Json::array();
    for (const char* scheme : {"bearer", "key"})
      operation["security"].push_back(Json::object({{scheme, Json::array()}}));
    fails("401", "no valid key");
  }
  if (source.contains("request")) {
    operation["requestBody"] = {
        {"required", true},
        {"content", content("application/json", reference(source["request"].get<std::string>()))}};
    fails("404", "no such model");
  }
  fails("408", "the request took too long to arrive");
  fails("413", "the body is too large");
  fails("415", "a compressed body");
  fails("431", "the headers are too large");
  fails("500", "the server failed");
  fails("503", "too many wait, or the model is not ready: try again after Retry-After");
  for (const char* own : {"request", "response", "streams"}) operation.erase(own);
  return operation;
}

}  // namespace

Json make_openapi(const Service& service) {
  Json sources;
  for (const char* text : {kOpenApiFields, kOpenApiRequests, kOpenApiResponses})
    sources.update(Json::parse(text));
  const bool keys = !service.keys().open();
  Json out = {{"openapi", "3.1.0"}, {"info", {{"title", "VAMP"}, {"version", VAMP_VERSION}}}};
  out["paths"] = Json::parse(kOpenApiPaths);
  for (const Route& route : routes()) {
    Json& operation =
        out["paths"].at(route.path).at(boost::to_lower_copy(std::string(route.method)));
    operation = operation_of(route, operation, keys);
  }
  Json& components = out["components"];
  for (const auto& [name, schema] : sources.items())
    components["schemas"][name] = flattened(sources, name);
  components["parameters"] = Json::parse(kOpenApiParameters);
  if (keys) {
    components["securitySchemes"] = {
        {"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
        {"key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
  }
  fill_in(limits(service), out);
  return out;
}

}  // namespace vamp
