// TiledState: optimizer state that rests in a file, of which a few tiles are in memory while a step goes through it.
//
// A tile is the state of parameters of up to tile_numel owned elements. Before it is stepped, the optimizer's state
// tensors of these parameters become views of the tile's buffer. After it they become views of a mapping of the file,
// so that a checkpoint can read them at any time.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/offload/units/tile_file.h"
#include "hasten/parallel/shard/options.h"
#include "parallel/shard/sliced_step.h"

namespace hasten::parallel::shard {

class TiledState {
 public:
  /// Throws: as TileFile.
  explicit TiledState(const OffloadOptions& options);

  /// Steps tile by tile; returns the first tile's loss. Parameters that are not split are stepped with the first one.
  /// Blocks: until all is written. Throws: DataError for what cannot be read or written; UsageError
  /// before the first step if the state will not fit; what own_step throws.
  at::Tensor step(torch::optim::Optimizer& optimizer, const SplitParameters& split,
                  const std::function<at::Tensor()>& own_step);

  const offload::TileFile& file() const noexcept { return file_; }

 private:
  using Tile = std::vector<at::Tensor>;
  using Key = std::vector<const c10::TensorImpl*>;
  struct Piece {
    int64_t begin = 0;
    at::Tensor mapped = {};
  };
  struct Record {
    size_t tile = 0;
    std::vector<Piece> pieces = {};
  };
  std::vector<Tile> cut(const torch::optim::Optimizer& optimizer, const SplitParameters& split) const;
  void require_space(const torch::optim::Optimizer& optimizer, const SplitParameters& split);
  /// Returns the tile's memory with the state tensors over it. Null if state is in memory of its own.
  std::byte* enter(torch::optim::Optimizer& optimizer, const Tile& tile);
  void leave(torch::optim::Optimizer& optimizer, const Tile& tile, std::byte* memory);
  void forget(torch::optim::Optimizer& optimizer, const Tile& tile);
  void store(torch::optim::Optimizer& optimizer, const Tile& tile);

  OffloadOptions options_;
  offload::TileFile file_;
  std::map<Key, Record> records_;
  bool has_looked_ = false;
};

}  // namespace hasten::parallel::shard
