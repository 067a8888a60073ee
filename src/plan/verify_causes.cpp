// Likely causes of what differs first; see verify_step.h. Where no rule fits, the numbers alone are said.
#include <algorithm>
#include <cmath>

#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "plan/verify_step.h"

namespace hasten::plan {
namespace {

bool is_near(double value, double expected) {
  return std::abs(value - expected) <= 2e-3 * std::abs(expected);
}

// The module of a parameter or buffer: "net.1" of "net.1.weight".
std::string module_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

bool is_batch_norm(const std::string& parameter, const VerifyDigests& buffers) {
  const std::string module = module_of(parameter);
  return buffers.count(module.empty() ? "running_mean" : module + ".running_mean") != 0;
}

// Batch norms whose statistics a step of the run has changed.
bool has_batch_norm(const VerifyRank& rank) {
  const auto& behind = rank.steps.front().buffers;
  return std::any_of(rank.buffers.begin(), rank.buffers.end(), [&](const auto& buffer) {
    const auto now = behind.find(buffer.first);
    return buffer.first.ends_with("running_mean") && now != behind.end() && now->second.norm != buffer.second.norm;
  });
}

bool has_weights(const VerifyPair& pair) {
  return std::any_of(pair.shares_of_many.begin(), pair.shares_of_many.end(), [](const auto& share) {
    return std::any_of(share.second.losses.begin(), share.second.losses.end(),
                       [](const VerifyLoss* loss) { return loss->weight.has_value(); });
  });
}

bool has_drawn(const VerifyPair& pair) {
  return std::any_of(pair.shares_of_many.begin(), pair.shares_of_many.end(), [](const auto& share) {
    return std::any_of(share.second.losses.begin(), share.second.losses.end(),
                       [](const VerifyLoss* loss) { return loss->drew; });
  });
}

// Ranks whose generators had drawn other numbers before the same loss.
std::vector<int> ranks_that_drew_otherwise(const VerifyPair& pair) {
  std::vector<int> ranks;
  for (const auto& [rank, share] : pair.shares_of_many) {
    const auto other = pair.shares_of_one.find(rank);
    if (other == pair.shares_of_one.end() || other->second.losses.size() != share.losses.size()) continue;
    for (size_t i = 0; i < share.losses.size(); ++i) {
      if (share.losses[i]->generator == other->second.losses[i]->generator) continue;
      ranks.push_back(rank);
      break;
    }
  }
  return ranks;
}

// Returns the cause of differing runs of which one takes the global batch at once.
std::string cause_in_whole(const VerifyPair& pair, std::optional<double> factor) {
  const double n = pair.num_ranks();
  if (factor && is_near(*factor, n)) {
    return "the loss is a sum over the batch. Divide it by the batch, or call backward(loss, {.weight = n}) with a "
           "mean over n.";
  }
  const auto& rank = pair.many.ranks.front();
  if (has_batch_norm(rank) && !rank.sync_batch_norm) {
    return "batch norms see the batch of their rank alone. Convert the model with parallel::convert_sync_batchnorm.";
  }
  if (has_drawn(pair)) {
    return "the program draws random numbers for each batch (dropout, noise). Each rank draws its own, and one process "
           "others for all. Compare without --whole, or leave the draws out.";
  }
  if (!has_weights(pair)) {
    return "a mean over ranks of means is another number where ranks have unequal batches or numbers of tokens. Give "
           "each loss its weight: backward(loss, {.weight = n}).";
  }
  return "";
}

// Returns the cause in a window inside of which parameters change.
std::string write_cause(const VerifyPair& pair) {
  if (!pair.first().wrote && !pair.second().wrote) return "";
  return "the program changes parameters between the backwards of a step: an optimizer that was not prepared, or code "
         "of its own. One process makes those of all ranks one after the other. Give the optimizer to "
         "accelerator.prepare, or compare with --whole.";
}

// Returns the cause of runs in two precisions.
std::string rounding_cause(const VerifyPair& pair) {
  const auto& one = pair.one.ranks.front().precision;
  const auto& many = pair.many.ranks.front().precision;
  if (one == many) return "";
  const auto name = [](const std::string& precision) { return precision == "no" ? "float32" : precision; };
  return text("the runs compute in ", name(one), " and ", name(many),
              ", whose rounding may be as large. --tolerance sets what counts.");
}

}  // namespace

std::string cause_of_losses(const VerifyPair& pair, const std::vector<int>& shares, std::optional<double> factor) {
  const double n = pair.num_ranks();
  if (auto wrote = write_cause(pair); !wrote.empty()) return wrote;
  if (pair.one.whole() && !pair.many.whole()) return cause_in_whole(pair, factor);
  if (factor && n > 1 && (is_near(*factor, 1 / n) || is_near(*factor, n))) {
    return text("the program ", *factor < 1 ? "divides" : "multiplies", " the loss by the number of processes. ",
                "accelerator.backward takes the mean over the ranks already: leave that out.");
  }
  if (pair.many.ranks.front().sync_batch_norm && !pair.one.ranks.front().sync_batch_norm) {
    return "SyncBatchNorm sees the batches of all ranks together. Compare with hasten verify --whole.";
  }
  const auto drew = ranks_that_drew_otherwise(pair);
  if (!drew.empty()) {
    return text("before it rank ", drew.front(),
                " has drawn other random numbers: a draw on some ranks only, or one out of the loop's order (behind a "
                "condition, in a dataset's own thread).");
  }
  if (auto rounding = rounding_cause(pair); !rounding.empty()) return rounding;
  if (shares.empty()) return "";
  if (shares.size() < pair.shares_of_many.size()) {
    std::vector<std::string> words;
    for (const int rank : shares) words.push_back(text(rank));
    return text("only ", shares.size() == 1 ? "rank " : "ranks ", join(words, ", "),
                shares.size() == 1 ? " computes" : " compute",
                " it otherwise: a forward that depends on the rank. Look for branches on rank() or "
                "is_main_process().");
  }
  return "the forward depends on the number of processes, or on something that is not the batch. Look for uses of "
         "world_size() and num_processes().";
}

std::string cause_of_rank_gradients(const VerifyPair& pair, const DigestDifference& difference) {
  const auto& unprepared = pair.many.ranks.front().unprepared;
  const bool others = std::all_of(difference.names.begin(), difference.names.end(),
                                  [&](const std::string& name) { return unprepared.count(name) != 0; });
  if (others) {
    return "these belong to no prepared model, so nobody exchanges their gradients. Give their module to "
           "accelerator.prepare.";
  }
  if (difference.names.size() == difference.num_all) {
    return "gradients were not exchanged: the backward that ends the window ran inside no_sync, or past the "
           "Accelerator.";
  }
  return "these are not exchanged: registered or made trainable after prepare, or changed on one rank behind the "
         "exchange.";
}

std::string cause_of_gradients(const VerifyPair& pair, const DigestDifference& difference) {
  const double n = pair.num_ranks();
  if (auto wrote = write_cause(pair); !wrote.empty()) return wrote;
  if (!difference.factor) {
    if (auto rounding = rounding_cause(pair); !rounding.empty()) return rounding;
  }
  if (pair.first().changed) {
    return "the program changes gradients between the backwards of a window (a zero_grad or a clip of its own, or "
           "an optimizer that was not prepared), which one process makes one after the other. Prepare the optimizer, "
           "clip by the Accelerator, or compare with --whole.";
  }
  if (difference.factor && is_near(*difference.factor, n)) {
    return "a sum over the ranks in the place of a mean: DdpOptions::average is off, or the program adds gradients up "
           "by itself.";
  }
  if (difference.factor && is_near(*difference.factor, 1 / n)) {
    return "gradients are divided by the number of processes twice, or backward(loss) was called past the Accelerator. "
           "Call accelerator.backward(loss), and divide nothing.";
  }
  const auto& buffers = pair.many.ranks.front().buffers;
  const bool norms = std::all_of(difference.names.begin(), difference.names.end(),
                                 [&](const std::string& name) { return is_batch_norm(name, buffers); });
  if (norms && pair.one.whole()) {
    return "these are batch norms, which see the batch of their rank alone. Convert the model with "
           "parallel::convert_sync_batchnorm.";
  }
  if (difference.names.size() < difference.num_all) {
    return "look at where these are used: on some ranks only, tied to others, or with hooks of their own.";
  }
  if (!has_weights(pair) && pair.one.whole()) {
    return "ranks have unequal batches or numbers of tokens. Give each loss its weight: backward(loss, {.weight = n}).";
  }
  return "";
}

std::string cause_of_parameters(const VerifyPair& pair, const DigestDifference& difference) {
  if (auto rounding = rounding_cause(pair); !rounding.empty()) return rounding;
  const auto& unprepared = pair.many.ranks.front().unprepared;
  const bool all = difference.names.size() == difference.num_all;
  const bool others = std::any_of(difference.names.begin(), difference.names.end(),
                                  [&](const std::string& name) { return unprepared.count(name) != 0; });
  return text("gradients and rates are the same: ",
              all ? "an optimizer whose state or step depends on the number of processes, or a write of the program's "
                    "own to parameters."
                  : "these are stepped by an optimizer that was not prepared, or the program writes to them itself.",
              others ? " Some belong to no prepared model." : "");
}

std::string cause_of_buffers(const VerifyPair& pair) {
  const auto& rank = pair.many.ranks.front();
  if (has_batch_norm(rank) && pair.one.whole() && !rank.sync_batch_norm) {
    return "batch norms see the batch of their rank alone. Convert the model with parallel::convert_sync_batchnorm.";
  }
  return "buffers follow rank 0 in each backward: the program writes to them itself, or DdpOptions::broadcast_buffers "
         "is off.";
}

}  // namespace hasten::plan
