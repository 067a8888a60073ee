// Dealing pieces to ranks and laying files out; see save_plan.h.
#include "checkpoint/save/save_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "hasten/core/error.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::checkpoint {
namespace {

using core::Value;

// "state" for all that is no model.
std::string group_of(const PieceInfo& piece) {
  return piece.kind.rfind("model", 0) == 0 ? piece.kind : "state";
}

uint64_t bytes_of(const PieceInfo& piece) {
  return static_cast<uint64_t>(files::numel_of(piece.box)) * files::element_bytes(piece.info.dtype);
}

// Writers of all pieces: owners, and for copies that every rank has, the rank with least to write so far.
std::vector<int> deal(const std::vector<PieceInfo>& pieces, int world_size) {
  std::vector<int> writers(pieces.size());
  std::vector<uint64_t> load(static_cast<size_t>(world_size));
  std::vector<size_t> free;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].rank == kEveryRank) {
      free.push_back(i);
      continue;
    }
    if (pieces[i].rank < 0 || pieces[i].rank >= world_size) {
      throw UsageError(Origin{"checkpoint"}, "a piece of '", pieces[i].info.name, "' is of rank ", pieces[i].rank,
                       "; expected one below the world size ", world_size, '.');
    }
    writers[i] = pieces[i].rank;
    load[static_cast<size_t>(writers[i])] += bytes_of(pieces[i]);
  }
  std::stable_sort(free.begin(), free.end(),
                   [&](size_t a, size_t b) { return bytes_of(pieces[a]) > bytes_of(pieces[b]); });
  std::set<std::pair<uint64_t, int>> order;  // the least first
  for (int rank = 0; rank < world_size; ++rank) order.emplace(load[static_cast<size_t>(rank)], rank);
  for (const size_t i : free) {
    auto [bytes, rank] = *order.begin();
    order.erase(order.begin());
    writers[i] = rank;
    order.emplace(bytes + bytes_of(pieces[i]), rank);
  }
  return writers;
}

// complex128 and complex32 have no name in safetensors: parts in one more dimension.
files::TensorInfo stored_info(const PieceInfo& piece) {
  files::TensorInfo info{name_in_file(piece), piece.info.dtype, piece.box.size};
  if (info.dtype == files::Dtype::kComplex128 || info.dtype == files::Dtype::kComplex32) {
    info.dtype = info.dtype == files::Dtype::kComplex128 ? files::Dtype::kFloat64 : files::Dtype::kFloat16;
    info.shape.push_back(2);
  }
  return info;
}

struct Key {
  std::string group;
  int writer;
  size_t part;
  auto operator<=>(const Key&) const = default;
};

void check_agree(const std::vector<PieceInfo>& pieces) {
  std::map<std::string, const PieceInfo*> first;
  for (const auto& piece : pieces) {
    const auto [found, is_new] = first.emplace(piece.info.name, &piece);
    const auto& other = *found->second;
    if (is_new || (other.info.shape == piece.info.shape && other.info.dtype == piece.info.dtype)) continue;
    throw UsageError(Origin{"checkpoint"}, "'", piece.info.name, "' has sizes [", hasten::join(piece.info.shape),
                     "] of ", files::torch_name(piece.info.dtype), " on one rank and [", hasten::join(other.info.shape),
                     "] of ", files::torch_name(other.info.dtype), " on another. Make it equal on all ranks.");
  }
}

PlannedFile lay_out(const std::vector<PieceInfo>& pieces, const std::vector<size_t>& members, bool is_split) {
  std::vector<files::TensorInfo> infos;
  Value::Map sharding;  // names in a file differ
  for (const size_t i : members) {
    infos.push_back(stored_info(pieces[i]));
    auto offset = pieces[i].box.offset;
    offset.resize(infos.back().shape.size());
    if (is_split) sharding.emplace_back(infos.back().name, Value::map({{"saved_offsets", Value(offset)}}));
  }
  std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
  if (is_split) {
    metadata.emplace_back("DCP_SHARDING_INFO", Value(std::move(sharding)).to_json());
    metadata.emplace_back("DCP_VERSION", "1.0");
  }
  auto layout = files::lay_out_safetensors(infos, metadata);
  PlannedFile file;
  file.head = std::move(layout.head);
  file.bytes = layout.file_bytes;
  for (size_t i = 0; i < members.size(); ++i) file.pieces.push_back({members[i], layout.offsets[i]});
  return file;
}

std::string padded(size_t number) {
  std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

}  // namespace

bool PieceInfo::operator==(const PieceInfo& other) const {
  return info.name == other.info.name && info.dtype == other.info.dtype && info.shape == other.info.shape &&
         kind == other.kind && box == other.box && rank == other.rank;
}

std::string model_kind(size_t index) {
  return index == 0 ? "model" : text("model_", index);
}

std::string manifest_name(size_t model, const std::string& name) {
  return model == 0 ? name : model_kind(model) + "/" + name;
}

std::string name_in_file(const PieceInfo& piece) {
  const std::string prefix = piece.kind + "/";
  return piece.info.name.rfind(prefix, 0) == 0 ? piece.info.name.substr(prefix.size()) : piece.info.name;
}

SavePlan plan_save(const std::vector<PieceInfo>& pieces, int world_size) {
  check_agree(pieces);
  const auto writers = deal(pieces, world_size);
  std::map<Key, std::vector<size_t>> members;
  std::map<std::string, bool> is_split;  // by group
  std::map<std::string, std::set<int>> writers_of;
  std::map<std::tuple<std::string, int, std::string>, size_t> boxes;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string group = group_of(pieces[i]);
    const size_t part = boxes[{group, writers[i], pieces[i].info.name}]++;
    members[{group, writers[i], part}].push_back(i);
    is_split[group] = is_split[group] || pieces[i].box != files::whole_box(pieces[i].info.shape);
    writers_of[group].insert(writers[i]);
  }
  SavePlan plan;
  std::map<std::string, files::HfIndex> indexes;
  std::map<std::string, uint64_t> totals;
  for (const auto& [key, list] : members) {
    PlannedFile file = lay_out(pieces, list, is_split[key.group]);
    const auto& all = writers_of[key.group];
    const auto number = static_cast<size_t>(std::distance(all.begin(), all.find(key.writer))) + 1;
    file.name = key.group;
    if (all.size() > 1) file.name += text('-', padded(number), "-of-", padded(all.size()));
    if (key.part > 0) file.name += text(".part", key.part);
    file.name += ".safetensors";
    file.writer = key.writer;
    if (all.size() > 1 && !is_split[key.group] && key.group != "state") {
      for (const size_t i : list) {
        indexes[key.group].weight_map.emplace_back(name_in_file(pieces[i]), file.name);
        totals[key.group] += bytes_of(pieces[i]);
      }
    }
    plan.files.push_back(std::move(file));
  }
  for (auto& [group, index] : indexes) {
    index.metadata = Value::map({{"total_size", static_cast<int64_t>(totals[group])}});
    plan.indexes.emplace_back(group + ".safetensors.index.json", files::to_json(index));
  }
  return plan;
}

core::Value to_value(const std::vector<PieceInfo>& pieces) {
  Value::List list;
  for (const auto& piece : pieces) {
    Value::List one{piece.info.name, std::string(files::torch_name(piece.info.dtype)), Value(piece.info.shape),
                    piece.kind, piece.rank};
    if (piece.box != files::whole_box(piece.info.shape)) {
      one.emplace_back(Value(piece.box.offset));
      one.emplace_back(Value(piece.box.size));
    }
    list.emplace_back(std::move(one));
  }
  return list;
}

namespace {
std::vector<int64_t> ints_of(const Value& value) {
  std::vector<int64_t> ints;
  for (const auto& each : value.as_list()) ints.push_back(each.as_int());
  return ints;
}
}  // namespace

std::vector<PieceInfo> pieces_of(const core::Value& value) {
  std::vector<PieceInfo> pieces;
  for (const auto& item : value.as_list()) {
    const auto& list = item.as_list();
    const auto dtype = list.size() < 5 ? std::nullopt : files::dtype_of_torch_name(list[1].as_string());
    if (!dtype) throw UsageError(Origin{"checkpoint"}, "a rank sent a piece of another form: ", item.to_json(), '.');
    PieceInfo piece;
    piece.info = {list[0].as_string(), *dtype, ints_of(list[2])};
    piece.kind = list[3].as_string();
    piece.rank = static_cast<int>(list[4].as_int());
    piece.box = list.size() < 7 ? files::whole_box(piece.info.shape) : files::Box{ints_of(list[5]), ints_of(list[6])};
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace hasten::checkpoint
