#include "server/api/constraint.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/reasoning_grammar.h"

namespace vamp {
namespace {

using Asked = std::optional<RequestedConstraint>;

// A schema as JSON, or as JSON's text.
JsonSchemaConstraint read_schema(const Json& value, const std::string& name) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_object() && !value.is_boolean()) bad_field(name, "expected a JSON schema");
  return {dump(value)};
}

std::string read_source(const Json& value, const std::string& name) {
  if (!value.is_string()) bad_field(name, "expected a string");
  return value.get<std::string>();
}

// `fields` has the type; the schema lies in `holder`.
Asked read_format(const Fields& fields, const Json* holder, const std::string& holder_name) {
  const std::string type = fields.string("type", "text");
  if (type == "text") return std::nullopt;
  if (type == "json_object")
    return RequestedConstraint{JsonObjectConstraint{}, fields.name("type")};
  if (type != "json_schema") {
    bad_field(fields.name("type"), "{} is not supported: use text, json_object or json_schema",
              dump(Json(type)));
  }
  if (!holder) bad_field(holder_name, "missing");
  const Fields format(*holder, holder_name);
  const Json* schema = format.find("schema");
  const std::string name = format.name("schema");
  if (!schema) bad_field(name, "missing");
  return RequestedConstraint{read_schema(*schema, name), name};
}

Asked read_response_format(const Json& value) {
  const Fields format(value, "response_format");
  return read_format(format, format.find("json_schema"), "response_format.json_schema");
}

// The kinds of structured_outputs, and of guided_* behind their prefix. Calls `found` for each.
template <typename Found>
void read_kinds(const Fields& fields, const std::string& prefix, Found found) {
  const auto with = [&](const char* kind, auto make) {
    const std::string key = prefix + kind;
    if (const Json* value = fields.find(key.c_str())) {
      const std::string name = fields.name(key.c_str());
      found(RequestedConstraint{make(*value, name), name, /*any_output=*/true});
    }
  };
  with("json", read_schema);
  with("regex", [](const Json& value, const std::string& name) {
    return RegexConstraint{read_source(value, name)};
  });
  with("choice", [](const Json& value, const std::string& name) {
    if (!value.is_array()) bad_field(name, "expected a list of strings");
    ChoiceConstraint choice;
    for (const Json& entry : value) choice.choices.push_back(read_source(entry, name));
    return choice;
  });
  with("grammar", [](const Json& value, const std::string& name) {
    return EbnfConstraint{read_source(value, name)};
  });
  const std::string object = prefix + "json_object";
  if (fields.boolean(object.c_str(), false))
    found(RequestedConstraint{JsonObjectConstraint{}, fields.name(object.c_str()), true});
}

// What would change the output further and is not supported.
void refuse_options(const Fields& fields) {
  for (const char* key : {"structural_tag", "whitespace_pattern", "guided_whitespace_pattern"}) {
    if (fields.find(key)) bad_field(fields.name(key), "not supported");
  }
  if (fields.boolean("disable_any_whitespace", false))
    bad_field(fields.name("disable_any_whitespace"), "not supported");
}

std::optional<ReasoningTokens> reasoning_tokens(const Service& service, const Tokenizer& tokenizer,
                                                const OutputParserOptions& parser,
                                                const std::string& field) {
  if (writes_channels(parser))
    bad_field(field, "not supported yet with the output format of gpt-oss");
  const auto markers = reasoning_markers(parser);
  if (!markers) return std::nullopt;
  const auto end = tokenizer.id_of(markers->end);
  if (!end || *end >= service.model().vocab_size) {
    bad_field(field,
              "with --reasoning-parser {}, it needs {} to be one token, and this model's tokenizer "
              "has none: where the answer begins could not be seen",
              parser.reasoning_parser, markers->end);
  }
  auto begin = tokenizer.id_of(markers->begin);
  if (begin && *begin >= service.model().vocab_size) begin.reset();
  return ReasoningTokens{begin, *end, markers->open};
}

// A tokenizer need not have a token for every character.
void check_can_begin(const GenerationRequest& request, int vocab_size, const std::string& field) {
  std::vector<uint32_t> allowed((static_cast<size_t>(vocab_size) + 31) / 32);
  request.sampling.grammar->start(request.choice.stop_token_ids)->fill(allowed);
  if (std::all_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word == 0; }))
    bad_field(field, "no token of this model can begin such an output");
}

}  // namespace

std::optional<RequestedConstraint> read_constraint(const Fields& body) {
  Asked out;
  const auto take = [&out](RequestedConstraint asked) {
    if (out) bad_field(asked.field, "{} constrains the output too: use one of them", out->field);
    out = std::move(asked);
  };
  if (const Json* format = body.find("response_format")) {
    if (auto asked = read_response_format(*format)) take(std::move(*asked));
  }
  if (const Json* value = body.find("structured_outputs")) {
    const Fields fields(*value, "structured_outputs");
    refuse_options(fields);
    bool any = false;
    read_kinds(fields, "", [&](RequestedConstraint asked) {
      any = true;
      take(std::move(asked));
    });
    if (!any)
      bad_field("structured_outputs", "expected json, regex, choice, grammar or json_object");
  }
  refuse_options(body);
  read_kinds(body, "guided_", take);
  return out;
}

std::optional<RequestedConstraint> read_flat_format(const Json& format, const std::string& name) {
  return read_format(Fields(format, name), &format, name);
}

void apply_constraint(Service& service, const RequestedConstraint& asked, GenerationRequest& out) {
  const std::string& field = asked.field;
  if (out.sampling.min_tokens > 0)
    bad_field("min_tokens", "not together with {}, which says where the output ends", field);
  if (out.sampling.ignore_eos)
    bad_field("ignore_eos", "not together with {}, which says where the output ends", field);
  if (out.choice.stop_token_ids.empty())
    bad_field(field, "the model names no end token, so the request must: set stop_token_ids");
  const auto reasoning =
      reasoning_tokens(service, service.text().tokenizer(), out.choice.parser, field);
  try {
    out.sampling.grammar = service.grammars().compile(asked.constraint);
  } catch (const Error& error) {
    bad_field(field, "{}", error.what());
  }
  check_can_begin(out, service.model().vocab_size, field);
  if (reasoning) out.sampling.grammar = after_reasoning(out.sampling.grammar, *reasoning);
}

}  // namespace vamp
