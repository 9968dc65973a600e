#include "server/api/tool_constraint.h"

#include "base/error.h"
#include "grammar/json_schema_check.h"

namespace vamp {
namespace {

std::string parameters_field(size_t tool) {
  return fmt::format("tools[{}].function.parameters", tool);
}

// Arguments are an object, also where the schema leaves that to be understood.
Json arguments_schema(const Json& tool, const std::string& field) {
  const Json& function = tool.at("function");
  const auto found = function.find("parameters");
  if (found == function.end() || found->is_null())
    return {{"type", "object"}, {"properties", Json::object()}};
  if (!found->is_object()) bad_field(field, "expected a JSON schema");
  Json schema = *found;
  for (const char* key : {"type", "$ref", "anyOf", "oneOf", "allOf"}) {
    if (schema.contains(key)) return schema;
  }
  schema["type"] = "object";
  return schema;
}

// A schema's own places, "#/...", become places below `root` ("#/$defs/tool_0").
void move_references(const std::string& root, Json& schema) {
  if (schema.is_array()) {
    for (Json& entry : schema) move_references(root, entry);
  }
  if (!schema.is_object()) return;
  for (auto& [key, value] : schema.items()) {
    if (key == "enum" || key == "const" || key == "default" || key == "examples") continue;
    if (key == "$ref" && value.is_string()) {
      const std::string place = value.get<std::string>();
      if (place.starts_with('#')) value = root + place.substr(1);
    } else {
      move_references(root, value);
    }
  }
}

}  // namespace

RequestedConstraint named_tool_constraint(const Json& tools, const std::string& name) {
  for (size_t i = 0; i < tools.size(); ++i) {
    if (tools[i].at("function").at("name") != name) continue;
    const std::string field = parameters_field(i);
    return {JsonSchemaConstraint{dump(arguments_schema(tools[i], field))}, field};
  }
  bad_field("tool_choice", "no tool is called {}", dump(Json(name)));
}

RequestedConstraint required_tools_constraint(const Json& tools, bool parallel,
                                              const GrammarLimits& limits) {
  Json calls = Json::array(), definitions = Json::object();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string field = parameters_field(i);
    Json schema = arguments_schema(tools[i], field);
    try {  // alone, so that its faults have its name
      check_json_schema(nlohmann::json(schema), {.depth = limits.schema_depth,
                                                 .nodes = limits.schema_nodes,
                                                 .max_repetition = limits.max_repetition});
    } catch (const Error& error) {
      bad_field(field, "{}", error.what());
    }
    const std::string key = fmt::format("tool_{}", i);
    const std::string place = "#/$defs/" + key;
    move_references(place, schema);
    definitions[key] = std::move(schema);
    calls.push_back({{"type", "object"},
                     {"properties",
                      {{"name", {{"const", tools[i].at("function").at("name")}}},
                       {"parameters", {{"$ref", place}}}}},
                     {"required", {"name", "parameters"}},
                     {"additionalProperties", false}});
  }
  Json list = {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", std::move(calls)}}}};
  if (!parallel) list["maxItems"] = 1;
  list["$defs"] = std::move(definitions);
  return {JsonSchemaConstraint{dump(list)}, "tools"};
}

}  // namespace vamp
