// GET /openapi.json is held to the server: to its routes, and to what it reads of a request.
#include <gmock/gmock.h>

#include <boost/algorithm/string/case_conv.hpp>
#include <set>

#include "server/api/routes.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;

void find_references(const json& value, std::set<std::string>& out) {
  if (value.is_object() && value.contains("$ref")) out.insert(value["$ref"]);
  if (!value.is_structured()) return;
  for (const json& entry : value) find_references(entry, out);
}

// The least that a path's request must have.
json least_body(const std::string& path) {
  if (path == "/v1/completions" || path == "/v1/completions/render" || path == "/tokenize")
    return {{"prompt", "Hi"}};
  if (path == "/v1/responses") return {{"input", "Hi"}};
  if (path == "/detokenize") return {{"tokens", {1}}};
  json body = kChat;
  if (path == "/v1/messages") body["max_tokens"] = 1;
  return body;
}

class OpenApi : public testing::Test {
 protected:
  const json& schema_of(const json& operation) {
    const std::string place =
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    const json* schema = &description_.at(json::json_pointer(place.substr(1)));
    // The first of several: the others are its like.
    if (schema->contains("anyOf")) {
      const std::string first = (*schema)["anyOf"][0]["$ref"];
      schema = &description_.at(json::json_pointer(first.substr(1)));
    }
    return *schema;
  }

  // A field's own schema, behind a reference.
  json resolved(const json& schema) {
    if (!schema.contains("$ref")) return schema;
    return description_.at(json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
  }

  void expect_refused(const std::string& path, const std::string& field, const json& value) {
    json body = least_body(path);
    body[field] = value;
    if (field == "stream_options") body["stream"] = true;
    const HttpReply reply = post(server_.port(), path, body);
    EXPECT_EQ(reply.status, field == "model" && value.is_string() ? 404 : 400)
        << path << ": " << field << " = " << value << "\n"
        << reply.body;
    EXPECT_THAT(reply.body, testing::HasSubstr(field.starts_with("max_") ? "max" : field));
  }

  TestServer server_;
  const json description_ = get(server_.port(), "/openapi.json").json();
};

TEST_F(OpenApi, HasTheRoutesAndNoOther) {
  std::set<std::string> described, routed;
  for (const auto& [path, operations] : description_["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      described.insert(boost::to_upper_copy(method) + " " + path);
      EXPECT_TRUE(operation["responses"].contains("200")) << path;
    }
  }
  for (const Route& route : routes()) routed.insert(std::string(route.method) + " " + route.path);
  EXPECT_EQ(described, routed);
}

TEST_F(OpenApi, ReferencesLeadSomewhere) {
  std::set<std::string> references;
  find_references(description_, references);
  EXPECT_GT(references.size(), 20u);
  for (const std::string& reference : references)
    EXPECT_TRUE(description_.contains(json::json_pointer(reference.substr(1)))) << reference;
}

TEST_F(OpenApi, NamesTheLimitsOfThisServer) {
  const json& schemas = description_["components"]["schemas"];
  EXPECT_EQ(schemas["TokenId"]["maximum"], server_.server().service().model().vocab_size - 1);
  EXPECT_EQ(schemas["ChatRequest"]["properties"]["max_tokens"]["maximum"], 1023);
  EXPECT_EQ(schemas["ChatRequest"]["properties"]["n"]["maximum"], 128);
  EXPECT_EQ(schemas["ModelName"]["enum"], json({"test-model", "", nullptr}));
  EXPECT_FALSE(description_["paths"]["/v1/models"]["get"].contains("security"));
}

TEST_F(OpenApi, EveryFieldIsReadAndHeldToItsTypeAndRange) {
  int fields = 0;
  for (const auto& [path, operations] : description_["paths"].items()) {
    if (!operations.contains("post") || !operations["post"].contains("requestBody")) continue;
    for (const auto& [field, described] : schema_of(operations["post"])["properties"].items()) {
      const json schema = resolved(described);
      if (!schema.contains("type") && !schema.contains("enum") && !schema.contains("anyOf"))
        continue;
      ++fields;
      expect_refused(path, field, json::parse("[[[]]]"));
      if (schema.value("maximum", 1e18) < 1e15) {
        expect_refused(path, field,
                       schema["maximum"].get<double>() < 100
                           ? json(schema["maximum"].get<double>() + 1)
                           : json(schema["maximum"].get<int64_t>() + 1));
      }
      if (schema.value("minimum", -1e18) > -1e15)
        expect_refused(path, field, json(schema["minimum"].get<int64_t>() - 1));
    }
  }
  EXPECT_GT(fields, 150);
}

TEST_F(OpenApi, AWholeNumberIsOneHoweverItIsWritten) {
  const auto ask = [&](const char* path, const char* body) {
    return call(server_.port(), "POST", path, body).status;
  };
  EXPECT_EQ(ask("/v1/completions", R"({"prompt": [1.0, 2], "max_tokens": 4.0, "seed": -7e0})"),
            200);
  EXPECT_EQ(ask("/detokenize", R"({"tokens": [1.0]})"), 200);
  for (const char* number : {"4.5", "1e300", "18446744073709551615", "-1e300", "\"4\""}) {
    const std::string body = std::string(R"({"prompt": "Hi", "max_tokens": )") + number + "}";
    EXPECT_EQ(ask("/v1/completions", body.c_str()), 400) << number;
  }
}

TEST(OpenApiKeys, AreNamedWhereTheyAreNeeded) {
  ServerOptions options;
  options.api_keys = {"secret"};
  const TestServer server("Hello", options);
  const json description = get(server.port(), "/openapi.json").json();
  EXPECT_TRUE(description["components"]["securitySchemes"].contains("bearer"));
  for (const Route& route : routes()) {
    const json& operation =
        description["paths"][route.path][boost::to_lower_copy(std::string(route.method))];
    EXPECT_EQ(operation.contains("security"), route.needs_key) << route.path;
    EXPECT_EQ(operation["responses"].contains("401"), route.needs_key) << route.path;
  }
}

TEST_F(OpenApi, AMethodThatIsNotTakenIsAnsweredWithThoseThatAre) {
  const HttpReply reply = call(server_.port(), "DELETE", "/ping");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "GET, HEAD, POST");
}

}  // namespace
}  // namespace vamp
