// See verify_record.h.
#include "hasten/plan/verify_record.h"

#include <algorithm>
#include <exception>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"

namespace hasten::plan {
namespace {

using core::Value;

VerifyDigests read_digests(const Value& value) {
  VerifyDigests all;
  for (const auto& [name, numbers] : value.as_map()) {
    const auto& list = numbers.as_list();
    VerifyDigest digest{.norm = list.at(0).as_double()};
    for (size_t i = 0; i < digest.products.size(); ++i) digest.products[i] = list.at(i + 1).as_double();
    all[name] = digest;
  }
  return all;
}

VerifyBatch read_batch(const Value& value) {
  VerifyBatch batch{.share = static_cast<int>(value.at("share").as_int()),
                    .is_prepared = value.at("prepared").as_bool(),
                    .bytes = value.at("bytes").as_string()};
  for (const auto& position : value.at("positions").as_list()) batch.positions.push_back(position.as_int());
  return batch;
}

std::optional<double> number_at(const Value& value, std::string_view key) {
  const Value* found = value.find(key);
  if (found == nullptr || found->is_null()) return std::nullopt;
  return found->as_double();
}

VerifyLoss read_loss(const Value& value) {
  return {.share = static_cast<int>(value.at("share").as_int()),
          .value = number_at(value, "value"),
          .weight = number_at(value, "weight"),
          .generator = value.at("generator").as_string(),
          .drew = value.at("drew").as_bool()};
}

VerifyStep read_step(const Value& value) {
  VerifyStep step{.optimizer = value.at("optimizer").as_int(),
                  .gradients = read_digests(value.at("gradients")),
                  .before = read_digests(value.at("before")),
                  .parameters = read_digests(value.at("parameters")),
                  .buffers = read_digests(value.at("buffers")),
                  .changed = value.at("changed").as_bool(),
                  .wrote = value.at("wrote").as_bool(),
                  .norm = number_at(value, "norm"),
                  .scale = value.at("scale").as_double(),
                  .skipped = value.at("skipped").as_bool()};
  for (const auto& batch : value.at("batches").as_list()) step.batches.push_back(read_batch(batch));
  for (const auto& loss : value.at("losses").as_list()) step.losses.push_back(read_loss(loss));
  for (const auto& [name, rate] : value.at("rates").as_map()) step.rates[name] = rate.as_double();
  return step;
}

void read_start(VerifyRank& rank, const Value& value) {
  const Value& facts = value.at("facts");
  rank.has_started = true;
  rank.precision = facts.at("precision").as_string();
  rank.shard_stage = facts.at("shard_stage").as_int();
  rank.sync_batch_norm = facts.at("sync_batch_norm").as_bool();
  for (const auto& name : value.at("unprepared").as_list()) rank.unprepared.insert(name.as_string());
  rank.parameters = read_digests(value.at("parameters"));
  rank.buffers = read_digests(value.at("buffers"));
}

void read_event(std::map<int64_t, VerifyRank>& ranks, const Value& value) {
  const int64_t number = value.at("rank").as_int();
  const std::string& event = value.at("event").as_string();
  if (event == "open") {
    ranks[number] = {.rank = static_cast<int>(number),
                     .world_size = static_cast<int>(value.at("world_size").as_int()),
                     .num_shares = static_cast<int>(value.at("shares").as_int()),
                     .whole = value.at("whole").as_bool(),
                     .most_steps = value.at("steps").as_int()};
    return;
  }
  VerifyRank& rank = ranks[number];
  if (event == "start") read_start(rank, value);
  if (event == "begin") rank.num_begun = value.at("step").as_int() + 1;
  if (event == "step") rank.steps.push_back(read_step(value));
  if (event == "exit") rank.has_ended = true;
}

}  // namespace

int VerifyRun::num_shares() const noexcept {
  return ranks.empty() ? 1 : std::max(ranks.front().world_size, ranks.front().num_shares);
}

std::string processes_text(const VerifyRun& run) {
  if (run.world_size() == 1) return "one process";
  return count_text(run.world_size(), "process");
}

VerifyRun read_verify_run(std::string_view text, const std::string& name) {
  std::map<int64_t, VerifyRank> ranks;
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    try {
      read_event(ranks, Value::parse_json(text.substr(begin, end - begin), name));
    } catch (const std::exception& error) {
      throw DataError(Origin{"verify"}, name, "'", name, "', line ", number, " is no event of a record: ",
                      inner_words(error.what()),
                      ". Record the run again with hasten verify --record.");
    }
    begin = end + 1;
  }
  VerifyRun run;
  for (auto& [rank, events] : ranks) run.ranks.push_back(std::move(events));
  return run;
}

}  // namespace hasten::plan
