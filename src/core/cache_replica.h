// For tests: a copy of the prefix cache's index, kept from its events alone as a router keeps it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/scheduler.h"

namespace vamp {

class CacheReplica {
 public:
  // `salts`: every tenant's; a chain begins in one of them.
  CacheReplica(int block_tokens, std::vector<uint64_t> salts)
      : block_tokens_(static_cast<size_t>(block_tokens)), salts_(std::move(salts)) {}

  // Fails on an event that does not fit what came before.
  void apply(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) {
      ++count_[event.kind];
      switch (event.kind) {
        case KvEvent::Kind::kStored:
          store(event);
          break;
        case KvEvent::Kind::kRemoved:
          for (const PrefixKey& key : event.keys)
            EXPECT_EQ(held(event.tier).erase(name(key)), 1u) << "gone, but was never there";
          break;
        case KvEvent::Kind::kCleared:
          EXPECT_EQ(held(CacheTier::kDevice).size() + held(CacheTier::kHost).size(), 0u);
          break;
      }
    }
  }

  void expect_equal(const Scheduler& scheduler) {
    for (const CacheTier tier : {CacheTier::kDevice, CacheTier::kHost}) {
      std::set<Name> truth;
      for (const PrefixKey& key : scheduler.cached_keys(tier)) truth.insert(name(key));
      ASSERT_EQ(held(tier), truth) << "tier " << static_cast<int>(tier);
    }
  }

  int count(KvEvent::Kind kind) { return count_[kind]; }

 private:
  using Name = std::pair<uint64_t, uint64_t>;
  static Name name(const PrefixKey& key) { return {key.low, key.high}; }
  std::set<Name>& held(CacheTier tier) { return tiers_[static_cast<size_t>(tier)]; }

  void store(const KvEvent& event) {
    ASSERT_FALSE(event.keys.empty());
    ASSERT_EQ(event.tokens.size(), event.keys.size() * block_tokens_);
    std::vector<PrefixKey> parents;
    if (event.parent) {
      // On the device a block's parent is there too; the host tier gets a chain's end first.
      EXPECT_TRUE(held(CacheTier::kDevice).contains(name(*event.parent))) << "a chain with a gap";
      parents = {*event.parent};
    } else {
      for (const uint64_t salt : salts_) parents.push_back(root_key(salt));
    }
    for (size_t i = 0; i < event.keys.size(); ++i) {
      const auto tokens = std::span(event.tokens).subspan(i * block_tokens_, block_tokens_);
      EXPECT_TRUE(std::any_of(parents.begin(), parents.end(), [&](const PrefixKey& parent) {
        return child_key(parent, tokens) == event.keys[i];
      })) << "these tokens do not make this key";
      EXPECT_TRUE(held(event.tier).insert(name(event.keys[i])).second) << "there already";
      parents = {event.keys[i]};
    }
  }

  const size_t block_tokens_;
  const std::vector<uint64_t> salts_;
  std::set<Name> tiers_[2];
  std::map<KvEvent::Kind, int> count_;
};

}  // namespace vamp
