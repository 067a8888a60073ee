// See tiled_state.h.
#include "parallel/shard/tiled_state.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "parallel/shard/host_tiles.h"
#include "parallel/shard/optimizer_state.h"

namespace hasten::parallel::shard {
namespace {

constexpr int64_t kPieceAlign = 64;

template <class Visit>
void for_each_state(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& tile, const Visit& visit) {
  for (const at::Tensor& parameter : tile) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end() || state->second == nullptr) continue;
    visit_state(*state->second, [&](const char*, at::Tensor& tensor) {
      if (tensor.defined() && tensor.numel() > 0) visit(tensor);
    });
  }
}

at::Tensor view_of(std::byte* memory, const at::Tensor& like, std::shared_ptr<const std::byte> keep = {}) {
  return torch::from_blob(
      memory, like.sizes(), [keep = std::move(keep)](void*) {}, like.scalar_type());
}

std::vector<const c10::TensorImpl*> key_of(const std::vector<at::Tensor>& tile) {
  std::vector<const c10::TensorImpl*> key;
  for (const at::Tensor& parameter : tile) key.push_back(parameter.unsafeGetTensorImpl());
  return key;
}

}  // namespace

TiledState::TiledState(const OffloadOptions& options)
    : options_(options),
      file_(options.path,
            {.block_bytes = options.block_bytes,
             .queue_depth = static_cast<int>(std::min<int64_t>(int64_t{options.queue_depth} * options.num_threads, 64)),
             .num_buffers = options.num_buffers}) {}

std::vector<TiledState::Tile> TiledState::cut(const torch::optim::Optimizer& optimizer,
                                              const SplitParameters& split) const {
  // A bias takes its layer's weight along: a tile ends up to a 16th above its size, not far below it.
  const int64_t most = options_.tile_numel + options_.tile_numel / 16;
  std::vector<Tile> tiles(1);
  int64_t numel = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = split.find(parameter.unsafeGetTensorImpl());
      if (found == split.end()) continue;
      const int64_t more = stepped_interval(found->second, StepKind::kElementwise).size();
      if (numel > 0 && numel + more > most) {
        tiles.emplace_back();
        numel = 0;
      }
      tiles.back().push_back(parameter);
      numel += more;
    }
  }
  return tiles;
}

// Before the first step, so that a run does not end in the middle of one.
void TiledState::require_space(const torch::optim::Optimizer& optimizer, const SplitParameters& split) {
  if (std::exchange(has_looked_, true)) return;
  int64_t numel = 0;
  for (const auto& [impl, place] : split) numel += stepped_interval(place, StepKind::kElementwise).size();
  const auto names = state_names(optimizer);
  const bool is_adam = names.size() == 3 && std::string(names[0]) == "exp_avg";
  const int64_t needed = numel * 4 * (is_adam ? 2 : static_cast<int64_t>(names.size())),
                available = file_.available_bytes();
  Logger("shard").info(text("optimizer state in '", options_.path, "': ", needed, " bytes, by ", file_.describe()));
  if (needed <= available) return;
  throw UsageError(Origin{"shard"}, "this rank's optimizer state needs up to ", needed, " bytes in '", options_.path,
                   "', where ", available,
                   " are free. Free space, or choose another folder (OffloadOptions::path, nvme_path).");
}

std::byte* TiledState::enter(torch::optim::Optimizer& optimizer, const Tile& tile) {
  const auto found = records_.find(key_of(tile));
  if (found == records_.end()) return nullptr;
  const auto& pieces = found->second.pieces;
  size_t next = 0;
  bool same = true;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    same = same && next < pieces.size() && tensor.const_data_ptr() == pieces[next].mapped.const_data_ptr() &&
           tensor.is_contiguous();
    ++next;
  });
  if (!same || next != pieces.size()) {
    // Loaded, or made anew.
    forget(optimizer, tile);
    return nullptr;
  }
  std::byte* const memory = file_.open(found->second.tile);
  next = 0;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) { tensor = view_of(memory + pieces[next++].begin, tensor); });
  return memory;
}

void TiledState::forget(torch::optim::Optimizer& optimizer, const Tile& tile) {
  const auto found = records_.find(key_of(tile));
  if (found == records_.end()) return;
  const auto& pieces = found->second.pieces;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    const bool ours = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.mapped.const_data_ptr() == tensor.const_data_ptr();
    });
    if (ours) tensor = tensor.clone();
  });
  file_.remove(found->second.tile);
  records_.erase(found);
}

void TiledState::leave(torch::optim::Optimizer& optimizer, const Tile& tile, std::byte* memory) {
  if (memory == nullptr) return store(optimizer, tile);
  auto& record = records_.at(key_of(tile));
  size_t next = 0;
  bool fits = true;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    fits = fits && next < record.pieces.size() && tensor.nbytes() == record.pieces[next].mapped.nbytes() &&
           tensor.is_contiguous();
    ++next;
  });
  if (!fits || next != record.pieces.size()) {
    for_each_state(optimizer, tile, [&](at::Tensor& tensor) { tensor = tensor.clone(); });
    file_.close(record.tile);
    forget(optimizer, tile);
    return store(optimizer, tile);
  }
  next = 0;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    const Piece& piece = record.pieces[next++];
    std::byte* const place = memory + piece.begin;
    if (tensor.const_data_ptr() != place) std::memcpy(place, tensor.const_data_ptr(), tensor.nbytes());
    tensor = piece.mapped;
  });
  file_.close(record.tile);
}

void TiledState::store(torch::optim::Optimizer& optimizer, const Tile& tile) {
  int64_t end = 0;
  Record record;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    record.pieces.push_back({.begin = end});
    end += (static_cast<int64_t>(tensor.nbytes()) + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
  });
  if (record.pieces.empty()) return;
  record.tile = file_.add(end);
  std::byte* const memory = file_.open_empty(record.tile);
  const auto mapping = file_.map(record.tile);
  size_t next = 0;
  for_each_state(optimizer, tile, [&](at::Tensor& tensor) {
    Piece& piece = record.pieces[next++];
    const at::Tensor values = tensor.contiguous();
    std::memcpy(memory + piece.begin, values.const_data_ptr(), values.nbytes());
    piece.mapped = view_of(const_cast<std::byte*>(mapping.get()) + piece.begin, tensor, mapping);
    tensor = piece.mapped;
  });
  file_.close(record.tile);
  records_[key_of(tile)] = std::move(record);
}

at::Tensor TiledState::step(torch::optim::Optimizer& optimizer, const SplitParameters& split,
                            const std::function<at::Tensor()>& own_step) {
  const at::NoGradGuard no_grad;
  require_space(optimizer, split);
  const auto tiles = cut(optimizer, split);
  UnitSends sends(tiles, split);
  const auto ahead = static_cast<size_t>(std::max(1, options_.num_buffers - 2));
  at::Tensor loss;
  for (size_t i = 0; i < tiles.size(); ++i) {
    std::byte* const memory = enter(optimizer, tiles[i]);
    for (size_t next = i + 1; next <= i + ahead && next < tiles.size(); ++next) {
      const auto found = records_.find(key_of(tiles[next]));
      if (found != records_.end()) file_.fetch(found->second.tile);
    }
    std::unordered_set<const c10::TensorImpl*> stepped;
    for (const at::Tensor& parameter : tiles[i]) stepped.insert(parameter.unsafeGetTensorImpl());
    {
      const SlicedStep slices(optimizer, split, StepKind::kElementwise, &stepped, i == 0);
      const at::Tensor given = own_step();
      if (i == 0) loss = given;
    }
    leave(optimizer, tiles[i], memory);
    sends.note_stepped(tiles[i]);
  }
  file_.flush();
  return loss;
}

}  // namespace hasten::parallel::shard
