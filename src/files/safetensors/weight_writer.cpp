// Streams of 16 MB through a few threads; see weight_writer.h.
#include "hasten/files/safetensors/weight_writer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

#include "files/base/origin.h"
#include "files/base/posix_file.h"
#include "hasten/core/cpu_quota.h"
#include "hasten/core/hash.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/shard_split.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kChunkBytes = 16 << 20;

/// The tensors of a source as they are written: with the dtype they are cast to.
class CastSource {
 public:
  CastSource(const TensorSource& source, std::optional<Dtype> dtype) : source_(source), dtype_(dtype) {}

  TensorInfo info(const std::string& name) const {
    TensorInfo info = source_.info(name);
    if (dtype_ && can_cast(info.dtype, *dtype_)) info.dtype = *dtype_;
    return info;
  }

  /// Reads elements [begin, begin + count) of the flat tensor as they are written. `spare` is used for casting.
  void read(const std::string& name, int64_t begin, int64_t count, char* target, std::string& spare) const {
    const TensorInfo& stored = source_.info(name);
    const Dtype dtype = info(name).dtype;
    const auto item = static_cast<int64_t>(element_bytes(stored.dtype));
    char* to = target;
    if (stored.dtype != dtype) {
      spare.resize(static_cast<size_t>(count * item));
      to = spare.data();
    }
    char* const first = to;
    for (const Box& box : boxes_of_range(stored.shape, begin, begin + count)) {
      source_.read(name, box, to);
      to += numel_of(box) * item;
    }
    if (stored.dtype != dtype) cast_elements(stored.dtype, first, dtype, target, static_cast<size_t>(count));
  }

 private:
  const TensorSource& source_;
  std::optional<Dtype> dtype_;
};

/// A part of a tensor's elements, where it goes in a file, and the hash of its bytes once it is written.
struct Task {
  const std::string* name;
  int64_t begin, count;
  uint64_t offset, bytes;
  core::Xxh128 hash = {};
};

/// Runs `work(i)` for all i in [0, n) on a few threads. Throws the first exception again.
void run_on_threads(size_t n, size_t num_threads, const std::function<void(size_t, std::string&, std::string&)>& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto loop = [&] {
    std::string buffer, spare;
    for (size_t i = next++; i < n; i = next++) {
      try {
        work(i, buffer, spare);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = n;
      }
    }
  };
  const size_t requested = num_threads != 0 ? num_threads : static_cast<size_t>(std::min(usable_cpus(), 4));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(requested, n); ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

/// A call of write_weights.
class Job {
 public:
  Job(Disk& disk, const TensorSource& source, const WeightWriteOptions& options)
      : disk_(disk), cast_(source, options.dtype), options_(options) {}

  /// Writes tensors to `path`, by way of a temporary name.
  void write_file(const std::vector<std::string>& names, const std::string& path) {
    const std::string temporary = temporary_folder_of(path, id_);
    try {
      options_.safe_serialization ? write_safetensors(names, temporary) : write_torch(names, temporary, path);
      disk_.rename(temporary, path, Rename::kReplace);
    } catch (...) {
      try {
        remove_tree(disk_, temporary);
      } catch (const DiskError&) {
        // The caller gets the first failure.
      }
      throw;
    }
  }

 private:
  std::vector<TensorInfo> infos_of(const std::vector<std::string>& names) const {
    std::vector<TensorInfo> infos;
    for (const std::string& name : names) infos.push_back(cast_.info(name));
    return infos;
  }

  void write_safetensors(const std::vector<std::string>& names, const std::string& path) {
    const std::vector<TensorInfo> infos = infos_of(names);
    const SafetensorsLayout layout = lay_out_safetensors(infos, options_.metadata);
    std::vector<Task> tasks;
    for (size_t i = 0; i < infos.size(); ++i) {
      const auto item = static_cast<int64_t>(element_bytes(infos[i].dtype));
      // A chunk is of the larger of both dtypes, so that a cast keeps within it as well.
      const int64_t numel = numel_of(infos[i].shape), step = kChunkBytes / std::max<int64_t>(item, 8);
      for (int64_t begin = 0; begin < numel; begin += step) {
        const int64_t count = std::min(step, numel - begin);
        tasks.push_back({&names[i], begin, count, layout.offsets[i] + static_cast<uint64_t>(begin * item),
                         static_cast<uint64_t>(count * item)});
      }
    }
    std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.offset < b.offset; });
    const auto file = disk_.create(path);
    file->truncate(layout.file_bytes);
    file->write_at(0, layout.head.data(), layout.head.size());
    run_on_threads(tasks.size(), options_.num_threads, [&](size_t i, std::string& buffer, std::string& spare) {
      Task& task = tasks[i];
      buffer.resize(task.bytes);
      cast_.read(*task.name, task.begin, task.count, buffer.data(), spare);
      if (options_.verify) task.hash = core::xxh3_128(buffer);
      file->write_at(task.offset, buffer.data(), buffer.size());
    });
    if (options_.sync || options_.verify) file->sync();
    file->close();
    if (options_.verify) compare(tasks, path);
  }

  void compare(const std::vector<Task>& tasks, const std::string& path) const {
    const PosixFile file = PosixFile::open_to_read(path);
    run_on_threads(tasks.size(), options_.num_threads, [&](size_t i, std::string& buffer, std::string&) {
      buffer.resize(tasks[i].bytes);
      file.read_at(tasks[i].offset, buffer.data(), buffer.size());
      if (core::xxh3_128(buffer) != tasks[i].hash)
        fail_data(path, "tensor '", *tasks[i].name, "' reads back with other bytes than were written. Check the disk.");
    });
  }

  void write_torch(const std::vector<std::string>& names, const std::string& temporary, const std::string& path) {
    PythonValue::Pairs pairs;
    for (const std::string& name : names) {
      const TensorInfo info = cast_.info(name);
      auto storage = std::make_shared<PythonStorage>();
      storage->dtype = info.dtype;
      storage->bytes = bytes_of(info);
      const auto item = static_cast<int64_t>(element_bytes(info.dtype));
      storage->read = [this, name, item](uint64_t begin, uint64_t size, void* target) {
        std::string spare;
        cast_.read(name, static_cast<int64_t>(begin) / item, static_cast<int64_t>(size) / item,
                   static_cast<char*>(target), spare);
      };
      PythonTensor tensor{.storage = std::move(storage), .dtype = info.dtype, .shape = info.shape};
      tensor.stride = contiguous_strides(info.shape);
      pairs.emplace_back(name, std::move(tensor));
    }
    write_python_file(disk_, temporary, PythonValue::ordered_dict(std::move(pairs)),
                      {.root = fs::path(path).stem().string()});
    if (options_.verify) compare_torch(names, temporary);
  }

  void compare_torch(const std::vector<std::string>& names, const std::string& path) const {
    const TensorSourcePtr written = open_python_source(path, {.strip_prefix = false});
    std::string one, other, spare;
    for (const std::string& name : names) {
      const TensorInfo info = cast_.info(name);
      const auto item = static_cast<int64_t>(element_bytes(info.dtype));
      const int64_t numel = numel_of(info.shape), step = kChunkBytes / 16;
      for (int64_t begin = 0; begin < numel; begin += step) {
        const int64_t count = std::min(step, numel - begin);
        one.resize(static_cast<size_t>(count * item));
        other.resize(one.size());
        cast_.read(name, begin, count, one.data(), spare);
        CastSource(*written, {}).read(name, begin, count, other.data(), spare);
        if (one != other)
          fail_data(path, "tensor '", name, "' reads back with other bytes than were written. Check the disk.");
      }
    }
  }

  Disk& disk_;
  CastSource cast_;
  const WeightWriteOptions& options_;
  std::string id_ = new_save_id();
};

bool is_file_name(const std::string& out) {
  static constexpr std::string_view kSuffixes[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"};
  return std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                     [&](std::string_view suffix) { return out.ends_with(suffix); });
}

std::string pattern_of(bool safe, const std::string& variant) {
  const std::string middle = variant.empty() ? "" : text('.', variant);
  return safe ? text("model", middle, "{suffix}.safetensors") : text("pytorch_model", middle, "{suffix}.bin");
}

void make_parents(Disk& disk, const fs::path& path) {
  if (path.empty() || fs::is_directory(path)) return;
  make_parents(disk, path.parent_path());
  disk.make_folder(path.string());
}

ShardSplit split_of(const TensorSource& source, const CastSource& cast, const WeightWriteOptions& options) {
  std::vector<ShardTensor> tensors;
  for (const std::string& name : source.names())
    tensors.push_back({.name = name, .bytes = static_cast<uint64_t>(bytes_of(cast.info(name)))});
  return split_into_shards(tensors, options.max_shard_bytes, pattern_of(options.safe_serialization, options.variant));
}

}  // namespace

std::vector<std::string> remove_stale_weights(Disk& disk, const std::string& folder,
                                              const std::vector<std::string>& kept, const std::string& variant) {
  std::vector<std::string> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = is_shard_of(name, pattern_of(true, variant)) || is_shard_of(name, pattern_of(false, variant));
    if (ours && entry.is_regular_file() && std::find(kept.begin(), kept.end(), name) == kept.end())
      stale.push_back(name);
  }
  std::sort(stale.begin(), stale.end());
  for (const std::string& name : stale) disk.unlink((fs::path(folder) / name).string());
  return stale;
}

void require_no_state(const std::string& folder) {
  if (!fs::exists(fs::path(folder) / "manifest.json")) return;
  throw UsageError(kOrigin, "'", folder,
                   "' holds a state that save_state wrote, and weights saved there would replace "
                   "its shards. Give another folder.");
}

WrittenWeights write_weights(Disk& disk, const TensorSource& source, const std::string& out,
                             const WeightWriteOptions& options) {
  WrittenWeights written;
  const CastSource cast(source, options.dtype);
  for (const std::string& name : source.names())
    written.tensor_bytes += static_cast<uint64_t>(bytes_of(cast.info(name)));
  Job job(disk, source, options);
  if (is_file_name(out) && !fs::is_directory(out)) {
    const fs::path parent = fs::path(out).parent_path();
    make_parents(disk, parent);
    job.write_file(source.names(), out);
    written.files = {out};
    if (options.sync) disk.sync_folder(parent.empty() ? "." : parent.string());
    return written;
  }
  if (fs::exists(out) && !fs::is_directory(out))
    throw UsageError(kOrigin, "'", out, "' is a file, expected the path of a folder. Give another path.");
  require_no_state(out);
  make_parents(disk, fs::path(out).lexically_normal().has_filename() ? fs::path(out) : fs::path(out).parent_path());
  const ShardSplit split = split_of(source, cast, options);
  std::vector<std::string> kept;
  for (const ShardFile& file : split.files) {
    job.write_file(file.names, (fs::path(out) / file.file).string());
    written.files.push_back((fs::path(out) / file.file).string());
    kept.push_back(file.file);
  }
  if (split.is_sharded()) {
    const std::string pattern = pattern_of(options.safe_serialization, options.variant);
    kept.push_back(pattern.substr(0, pattern.find('{')) + pattern.substr(pattern.find('}') + 1) + ".index.json");
    const std::string index = (fs::path(out) / kept.back()).string(),
                      temporary = temporary_folder_of(index, new_save_id());
    files::write_file(disk, temporary, to_json(split.index()));
    disk.rename(temporary, index, Rename::kReplace);
    written.files.push_back(index);
  }
  if (options.sync) disk.sync_folder(out);
  remove_stale_weights(disk, out, kept, options.variant);
  return written;
}

}  // namespace hasten::files
