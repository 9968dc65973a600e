// KV events as vLLM writes them: MessagePack, so that whoever reads vLLM's reads ours.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kv_event.h"
#include "events/kv_events_config.h"

namespace vamp {

// A batch: [time, [event, ...], data-parallel rank]. `time` in seconds since 1970. A block's hash
// is the low half of its key: 64 bits is what readers hold it in.
std::vector<uint8_t> encode_kv_events(std::span<const KvEvent> events, double time,
                                      KvEventLayout layout);

}  // namespace vamp
