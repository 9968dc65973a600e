#include "events/kv_event_codec.h"

#include <nlohmann/json.hpp>

namespace vamp {
namespace {

using Json = nlohmann::ordered_json;
using Fields = std::vector<std::pair<const char*, Json>>;

const char* type_name(KvEvent::Kind kind) {
  switch (kind) {
    case KvEvent::Kind::kStored:
      return "BlockStored";
    case KvEvent::Kind::kRemoved:
      return "BlockRemoved";
    case KvEvent::Kind::kCleared:
      break;
  }
  return "AllBlocksCleared";
}

// In the order of vLLM's fields, which is all that the array layout has.
Fields fields_of(const KvEvent& event) {
  if (event.kind == KvEvent::Kind::kCleared) return {};
  Json hashes = Json::array();
  for (const PrefixKey& key : event.keys) hashes.push_back(key.low);
  const char* medium = event.tier == CacheTier::kDevice ? "GPU" : "CPU";
  if (event.kind == KvEvent::Kind::kRemoved)
    return {{"block_hashes", std::move(hashes)}, {"medium", medium}};
  return {{"block_hashes", std::move(hashes)},
          {"parent_block_hash", event.parent ? Json(event.parent->low) : Json()},
          {"token_ids", event.tokens},
          {"block_size", event.tokens.size() / event.keys.size()},
          {"lora_id", nullptr},
          {"medium", medium},
          {"lora_name", nullptr}};
}

Json event_json(const KvEvent& event, KvEventLayout layout) {
  const char* type = type_name(event.kind);
  if (layout == KvEventLayout::kMap) {
    Json map = {{"type", type}};
    for (auto& [name, value] : fields_of(event)) map[name] = std::move(value);
    return map;
  }
  Json list = Json::array({type});
  for (auto& [name, value] : fields_of(event)) list.push_back(std::move(value));
  return list;
}

}  // namespace

std::vector<uint8_t> encode_kv_events(std::span<const KvEvent> events, double time,
                                      KvEventLayout layout) {
  Json list = Json::array();
  for (const KvEvent& event : events) list.push_back(event_json(event, layout));
  return Json::to_msgpack(Json::array({time, std::move(list), 0}));
}

}  // namespace vamp
