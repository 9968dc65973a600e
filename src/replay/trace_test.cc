#include "replay/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace vamp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Trace parse(const std::string& text, const TraceReadOptions& options = {}) {
  return parse_trace({{"t.jsonl", text}}, options);
}

std::string fault_of(const std::string& text, const TraceReadOptions& options = {}) {
  try {
    parse(text, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

const BlockPrompt& blocks_of(const Trace& trace, size_t session, size_t turn) {
  return std::get<BlockPrompt>(trace.sessions.at(session).turns.at(turn).prompt);
}
const TextPrompt& text_of(const Trace& trace, size_t session, size_t turn) {
  return std::get<TextPrompt>(trace.sessions.at(session).turns.at(turn).prompt);
}

TEST(MooncakeTrace, SessionsKeepTheirTurnsInOrderWithDelays) {
  const Trace trace = parse(
      R"({"session_id":"a","input_length":130,"output_length":7,"hash_ids":[0,1],"timestamp":0}
{"session_id":"b","input_length":64,"output_length":1,"hash_ids":[0],"timestamp":1500}

{"session_id":"a","input_length":200,"output_length":0,"hash_ids":[0,1,5],"delay":250}
)");
  EXPECT_EQ(trace.format, TraceFormat::kMooncake);
  EXPECT_EQ(trace.block_tokens, 64);
  EXPECT_TRUE(trace.arrivals_recorded);
  ASSERT_EQ(trace.sessions.size(), 2u);
  EXPECT_EQ(trace.num_turns(), 3u);
  const TraceTurn& second = trace.sessions[0].turns[1];
  EXPECT_EQ(second.think, 0.25 * kSecond);
  EXPECT_EQ(second.output_tokens, 1);  // an engine always answers with a token
  EXPECT_EQ(trace.sessions[1].turns[0].not_before, 1.5 * kSecond);
  // Two tokens behind the first turn's whole blocks are the first two of block 5.
  EXPECT_THAT(blocks_of(trace, 0, 0).blocks, ElementsAre(0, 1, 5));
  EXPECT_EQ(blocks_of(trace, 0, 0).tokens, 130);
  EXPECT_EQ(blocks_of(trace, 0, 1).blocks.size(), 4u);
  EXPECT_THAT(blocks_of(trace, 1, 0).blocks, ElementsAre(0));
}

TEST(MooncakeTrace, TimeBeginsWithTheFirstRow) {
  const Trace trace =
      parse(R"({"timestamp":1700000003000,"input_length":600,"output_length":5,"hash_ids":[0,1]}
{"timestamp":1700000000000,"input_length":1024,"output_length":5,"hash_ids":[0,2]})");
  EXPECT_EQ(trace.sessions[0].turns[0].not_before, 3 * kSecond);
  EXPECT_EQ(trace.sessions[1].turns[0].not_before, 0);
}

TEST(MooncakeTrace, WithoutSessionIdEachRowIsASession) {
  const Trace trace = parse(R"({"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}
{"timestamp":3000,"input_length":1024,"output_length":5,"hash_ids":[0,2]})");
  EXPECT_EQ(trace.block_tokens, 512);
  ASSERT_EQ(trace.sessions.size(), 2u);
  EXPECT_EQ(trace.sessions[1].turns[0].not_before, 3 * kSecond);
  EXPECT_THAT(blocks_of(trace, 0, 0).blocks, ElementsAre(0, 1));
}

TEST(MooncakeTrace, TextAndMessages) {
  const Trace text = parse(R"({"session_id":"s","text_input":"hello","output_length":3}
{"session_id":"s","text_input":"more","output_length":3,"delay":10})");
  EXPECT_EQ(text.block_tokens, 0);
  EXPECT_FALSE(text_of(text, 0, 0).continues);
  EXPECT_EQ(text_of(text, 0, 0).lead, "<|im_start|>user\n");
  EXPECT_EQ(text_of(text, 0, 1).content, "more");
  EXPECT_TRUE(text_of(text, 0, 1).continues);

  const Trace messages = parse(
      R"({"session_id":"s","messages":[{"role":"user","content":"q"}],"output_length":3}
{"session_id":"s","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"tool","content":"r"}],"output_length":3}
{"session_id":"s","messages":[{"role":"user","content":"afresh"}],"output_length":3})");
  const TextPrompt& second = text_of(messages, 0, 1);
  EXPECT_TRUE(second.continues);
  EXPECT_EQ(second.recorded_reply, "a");
  EXPECT_EQ(second.lead + second.content + second.trail,
            "<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(text_of(messages, 0, 2).continues);
}

TEST(MooncakeTrace, FaultsNameFileLineAndField) {
  EXPECT_THAT(fault_of("{\"input_length\":1,\"hash_ids\":[]}\n{\"input_length\":"),
              AllOf(HasSubstr("t.jsonl line 2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(fault_of("{\"input_length\":0,\"hash_ids\":[]}"),
              HasSubstr("\"input_length\" must be a whole number from 1"));
  EXPECT_THAT(fault_of("{\"input_length\":18446744073709551615,\"hash_ids\":[]}"),
              HasSubstr("line 1"));
  EXPECT_THAT(fault_of("{\"input_length\":5}"), HasSubstr("\"hash_ids\" is missing"));
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[-1]}"), HasSubstr("0 to 2^63-1"));
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[],\"delay\":-3}"),
              HasSubstr("\"delay\" must be a number"));
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[1,2,3,4,5,6,7]}"),
              HasSubstr("--trace-block-size"));
  TraceReadOptions given;
  given.block_tokens = 16;
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[1,2]}", given),
              HasSubstr("make 1 blocks of 16"));
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[]}\n{\"text_input\":\"x\"}"),
              AllOf(HasSubstr("line 2"), HasSubstr("cannot be mixed")));
  EXPECT_THAT(fault_of("{\"input_length\":5,\"hash_ids\":[]}\n{\"delay\":1e9999}"),
              AllOf(HasSubstr("line 2"), HasSubstr("too large")));
  EXPECT_THAT(fault_of("[{\"id\": \"a\",\n \"messages\": [],\n \"at\": 1e9999}]"),
              AllOf(HasSubstr("line 3"), HasSubstr("too large")));
  EXPECT_THAT(fault_of("{\"a\":1}"), HasSubstr("--trace-format"));
  EXPECT_THAT(fault_of("  \n"), HasSubstr("is empty"));
}

TEST(WekaTrace, LocalIdsSubAgentsAndThinkTimes) {
  const std::string text = R"({"id":"w","block_size":64,"hash_id_scope":"local","requests":[
{"t":0,"type":"n","in":64,"out":5,"hash_ids":[1],"api_time":2},
{"t":5,"type":"subagent","requests":[{"t":5,"type":"n","in":70,"out":2,"hash_ids":[9],"think_time":0.5}]},
{"t":9,"type":"s","in":130,"out":2,"hash_ids":[1,2],"api_time":1},
{"t":12,"type":"s","in":130,"out":2,"hash_ids":[1,2]}]})";
  const Trace trace = parse_trace({{"a.json", text}, {"b.json", text}}, {});
  EXPECT_EQ(trace.format, TraceFormat::kWeka);
  ASSERT_EQ(trace.sessions.size(), 2u);
  const auto& turns = trace.sessions[0].turns;
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[1].think, 0.5 * kSecond);
  EXPECT_EQ(turns[3].think, 2 * kSecond);  // 12 - (9 + 1)
  EXPECT_EQ(blocks_of(trace, 0, 0).blocks[0], blocks_of(trace, 0, 2).blocks[0]);
  EXPECT_NE(blocks_of(trace, 0, 0).blocks[0], blocks_of(trace, 1, 0).blocks[0]);
}

TEST(WekaTrace, FaultsNameTheRequest) {
  EXPECT_THAT(
      fault_of(R"({"requests":[{"in":64,"out":5,"hash_ids":[]}],"block_size":64})"),
      AllOf(HasSubstr("request 1"), HasSubstr("make 1 whole blocks of 64, but hash_ids holds 0")));
  EXPECT_THAT(fault_of(R"({"requests":[]})"), HasSubstr("\"block_size\" is missing"));
  EXPECT_THAT(fault_of("{\"requests\":[\n{\"in\":\n"), HasSubstr("line 3"));
}

TEST(VllmMultiTurnTrace, ATurnForEachAnswer) {
  const Trace trace = parse(R"([{"id":"c","messages":[{"role":"system","content":"be brief"},
{"role":"user","content":"q1"},{"role":"assistant","content":"a1"},{"role":"user","content":"q2"}]}])");
  ASSERT_EQ(trace.num_turns(), 2u);
  EXPECT_EQ(text_of(trace, 0, 0).lead + text_of(trace, 0, 0).content,
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nq1");
  EXPECT_EQ(trace.sessions[0].turns[0].output_text, "a1");
  EXPECT_EQ(text_of(trace, 0, 1).recorded_reply, "a1");
  EXPECT_EQ(text_of(trace, 0, 1).lead, "<|im_end|>\n<|im_start|>user\n");
  EXPECT_THAT(fault_of(R"([{"messages":[{"role":"assistant","content":"x"}]}])"),
              HasSubstr("conversation 1"));
  EXPECT_THAT(fault_of(R"([{"messages":[]}])"), HasSubstr("no message"));
}

TEST(LmcacheTrace, RowsAreSortedAndCumulativeTextBecomesPieces) {
  const Trace trace =
      parse(R"({"timestamp":3000000,"input":"abcdOUTef","output":"z","session_id":"s"}
{"timestamp":1000000,"input":"ab","output":"","session_id":"s"}
{"timestamp":2000000,"input":"abcd","output":"OUT","session_id":"s"}
{"timestamp":4000000,"input":"new","output":"","session_id":"s"})");
  ASSERT_EQ(trace.num_turns(), 4u);
  EXPECT_EQ(text_of(trace, 0, 0).content, "ab");
  EXPECT_EQ(text_of(trace, 0, 1).content, "cd");
  EXPECT_EQ(text_of(trace, 0, 2).recorded_reply, "OUT");
  EXPECT_EQ(text_of(trace, 0, 2).content, "ef");
  EXPECT_FALSE(text_of(trace, 0, 3).continues);
  EXPECT_EQ(trace.sessions[0].turns[1].think, kSecond);
  EXPECT_EQ(trace.sessions[0].turns[3].not_before, 3 * kSecond);
}

TEST(Selection, DropsTheShortestThenLimits) {
  Trace trace;
  for (const size_t turns : {3u, 1u, 2u, 1u}) {
    trace.sessions.push_back(
        {std::to_string(trace.sessions.size()), std::vector<TraceTurn>(turns)});
  }
  select_sessions(trace, {.max_sessions = 2, .max_turns = 2, .drop_shortest = 1});
  ASSERT_EQ(trace.sessions.size(), 2u);
  EXPECT_EQ(trace.sessions[0].name, "0");
  EXPECT_EQ(trace.sessions[0].turns.size(), 2u);
  EXPECT_EQ(trace.sessions[1].name, "1");
  EXPECT_THROW(select_sessions(trace, {.drop_shortest = 2}), Error);
}

TEST(TokenScale, KeepsWholeBlocksWhole) {
  Trace trace = parse(R"({"session_id":"a","input_length":130,"output_length":9,"hash_ids":[0,1]}
{"session_id":"a","input_length":640,"output_length":9,"hash_ids":[0,1,2,3,4,5,6,7,8,9]})");
  scale_tokens(trace, 0.25);
  EXPECT_EQ(trace.block_tokens, 16);
  EXPECT_EQ(blocks_of(trace, 0, 0).tokens, 33);
  EXPECT_EQ(trace.sessions[0].turns[0].output_tokens, 2);
  EXPECT_THROW(scale_tokens(trace, 0.001), Error);
}

TEST(Sweep, GrowsEquallyToTheGivenBytes) {
  const Trace trace = make_sweep(
      {.sessions = 2, .turns = 12, .kv_bytes_per_session = 10000 * 96, .kv_bytes_per_token = 96});
  EXPECT_EQ(blocks_of(trace, 0, 0).tokens, 4000);
  EXPECT_EQ(blocks_of(trace, 0, 11).tokens, 10000 - 128);
  EXPECT_NE(blocks_of(trace, 0, 0).blocks[0], blocks_of(trace, 1, 0).blocks[0]);
  EXPECT_THROW(make_sweep({.kv_bytes_per_session = 96, .kv_bytes_per_token = 96}), Error);
}

TEST(TraceSource, ReadsGzipAndSaysWhatIsDamaged) {
  const auto folder = std::filesystem::temp_directory_path() / "vamp_trace_test";
  std::filesystem::create_directories(folder);
  const std::string whole = folder / "whole.gz", cut = folder / "cut.gz";
  gzFile file = gzopen(whole.c_str(), "wb");
  for (int i = 0; i < 100; ++i) gzprintf(file, "%d\n", i * 7919);
  gzclose(file);
  std::filesystem::copy_file(whole, cut, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  EXPECT_EQ(read_trace_documents(whole).at(0).text.substr(0, 7), "0\n7919\n");
  EXPECT_THROW(read_trace_documents(cut), Error);
  EXPECT_THROW(read_trace_documents(whole, 10), Error);
  EXPECT_THROW(read_trace_documents(folder / "none"), Error);
  EXPECT_THROW(read_trace_documents("/dev/zero", 1000), Error);
  // The limit is that of all files of a folder together.
  std::filesystem::remove(cut);
  std::filesystem::copy_file(whole, folder / "again.gz");
  const size_t size = read_trace_documents(whole).at(0).text.size();
  EXPECT_EQ(read_trace_documents(folder, 2 * size).size(), 2u);
  EXPECT_THROW(read_trace_documents(folder, 2 * size - 1), Error);
  std::filesystem::remove_all(folder);
}

// The committed traces are what their README says.
TEST(CommittedTraces, Figures) {
  const std::string folder = VAMP_SOURCE_DIR "/traces/";
  Trace swe = read_trace(folder + "swe2103.jsonl.gz");
  EXPECT_EQ(swe.sessions.size(), 52u);
  EXPECT_EQ(swe.num_turns(), 2114u);
  EXPECT_EQ(swe.block_tokens, 64);
  select_sessions(swe, {.drop_shortest = 4});
  EXPECT_EQ(swe.num_turns(), 2059u);
  const Trace text = read_trace(folder + "lmcache_miniswe.jsonl.gz");
  EXPECT_EQ(text.format, TraceFormat::kLmcache);
  EXPECT_GE(text.sessions.size(), 8u);
}

// A template: "<bos>[role]content</s>", which refuses tools.
std::string bracketed(const std::vector<ChatMessage>& messages, bool generate) {
  std::string text = "<bos>";
  for (const ChatMessage& message : messages) {
    if (message.role == "tool") throw Error("no tools here");
    text += "[" + message.role + "]" + message.content + "</s>";
  }
  return text + (generate ? "[assistant]" : "");
}

TEST(ChatMarkup, IsWhatTheTemplateWritesAroundMessages) {
  int asked = 0;
  ChatMarkup markup([&asked](const std::vector<ChatMessage>& messages, bool generate) {
    ++asked;
    return bracketed(messages, generate);
  });
  EXPECT_EQ(markup.first("user"), "<bos>[user]");
  EXPECT_EQ(markup.between("assistant", "user"), "</s>[user]");
  EXPECT_EQ(markup.answer("user"), "</s>[assistant]");
  EXPECT_EQ(markup.first("user"), "<bos>[user]");
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(markup.fallback(), "");
  EXPECT_EQ(markup.between("user", "tool"), "<|im_end|>\n<|im_start|>tool\n");
  EXPECT_EQ(markup.fallback(), "no tools here");
}

TEST(ChatMarkup, MessagesOutOfPlaceFallBackToChatMl) {
  ChatMarkup silent([](const std::vector<ChatMessage>&, bool) { return std::string("hello"); });
  EXPECT_EQ(silent.first("user"), "<|im_start|>user\n");
  EXPECT_THAT(silent.fallback(), HasSubstr("leaves out a message of role user"));
}

TEST(ChatMarkup, PromptsOfATraceAreInIt) {
  TraceReadOptions options;
  options.chat = true;
  options.markup = std::make_shared<ChatMarkup>(bracketed);
  const std::string rows =
      "{\"timestamp\":1,\"input\":\"a\",\"output\":\"b\",\"session_id\":\"s\"}\n"
      "{\"timestamp\":2,\"input\":\"abc\",\"output\":\"d\",\"session_id\":\"s\"}\n";
  const Trace trace = parse_trace({{"t", rows}}, options);
  EXPECT_EQ(text_of(trace, 0, 0).lead, "<bos>[user]");
  EXPECT_EQ(text_of(trace, 0, 1).lead, "</s>[user]");
  EXPECT_EQ(text_of(trace, 0, 1).recorded_reply, "b");
  EXPECT_EQ(text_of(trace, 0, 1).trail, "</s>[assistant]");
}

}  // namespace
}  // namespace vamp
