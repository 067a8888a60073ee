// The greedy search for a device map (device_map.h), in Accelerate's order of decisions.
#include <algorithm>
#include <deque>
#include <set>

#include "hasten/core/error.h"
#include "hasten/plan/device_map.h"

namespace hasten::plan {
namespace {

bool is_inside(const std::string& name, const std::string& parent) {
  return name == parent || (name.size() > parent.size() && name.starts_with(parent) && name[parent.size()] == '.');
}

// Tensors tied to one inside an entry, and the open entries that contain them.
struct Ties {
  std::vector<std::string> tensors = {};
  std::vector<TreeEntry> entries = {};
  double extra_bytes = 0;
};

class Search {
 public:
  Search(const ModuleTree& tree, const MemoryLimits& limits, const InferOptions& options)
      : options_(options),
        sizes_(compute_module_sizes(tree, options.sizes)),
        tied_(find_tied_parameters(tree)),
        open_(start_entries(tree)) {
    for (const auto& [device, bytes] : limits.entries) devices_.push_back({device, bytes, 0, 0, false});
    if (limits.find("disk") == nullptr) devices_.push_back({"disk", 0, 0, 0, false});
    mark_main_devices();
    largest_ = largest_layer(open_, sizes_, options_.no_split_module_classes);
  }

  InferredMap run() {
    while (!open_.empty()) {
      const TreeEntry entry = open_.front();
      open_.erase(open_.begin());
      step(entry);
    }
    if (options_.clean_result) result_.device_map = clean_device_map(std::move(result_.device_map));
    result_.warns_buffers = buffers_fit_nowhere();
    return std::move(result_);
  }

 private:
  struct Filled {
    Device device;
    double limit, used, buffers;
    bool is_main;
    bool is_disk() const { return device == Device("disk"); }
    bool is_accelerator() const { return !is_disk() && device != Device("cpu"); }
  };

  // Devices on which a layer from cpu or disk will run keep room for the largest one.
  void mark_main_devices() {
    const auto mark = [&](const Device& device) {
      for (Filled& filled : devices_) filled.is_main = filled.is_main || filled.device == device;
    };
    const auto first =
        std::find_if(devices_.begin(), devices_.end(), [](const Filled& f) { return f.is_accelerator(); });
    const bool has_mps =
        std::any_of(devices_.begin(), devices_.end(), [](const Filled& f) { return f.device == Device("mps"); });
    if (has_mps) return mark("mps");
    if (first != devices_.end()) mark(first->device);
    mark("cpu");
  }

  template <class... Parts>
  void log_line(const Parts&... parts) const {
    if (options_.verbose) options_.verbose(text(parts...));
  }

  void refresh_largest() {
    std::vector<TreeEntry> modules;
    std::copy_if(open_.begin(), open_.end(), std::back_inserter(modules),
                 [](const TreeEntry& e) { return e.module != nullptr; });
    largest_ = largest_layer(modules, sizes_, options_.no_split_module_classes);
  }

  // What comes along with an entry: the open entries that hold tensors tied to one of its own, those tied to theirs,
  // and so on.
  Ties ties_of(const std::string& name, const std::vector<TreeEntry>& open) const {
    Ties ties = direct_ties_of(name, open);
    for (size_t i = 0; i < ties.entries.size(); ++i) {
      const Ties further = direct_ties_of(std::string(ties.entries[i].name), open);
      for (size_t j = 0; j < further.entries.size(); ++j) {
        const std::string& other = further.entries[j].name;
        const auto is_it = [&](const TreeEntry& entry) { return entry.name == other; };
        if (other == name || std::any_of(ties.entries.begin(), ties.entries.end(), is_it)) continue;
        ties.tensors.push_back(further.tensors[j]);
        ties.entries.push_back(further.entries[j]);
        ties.extra_bytes += sizes_.at(other);
      }
    }
    return ties;
  }

  Ties direct_ties_of(const std::string& name, const std::vector<TreeEntry>& open) const {
    Ties ties;
    for (const auto& group : tied_) {
      const auto inside = [&](const std::string& tensor) { return is_inside(tensor, name); };
      if (std::none_of(group.begin(), group.end(), inside) || std::all_of(group.begin(), group.end(), inside)) continue;
      for (const std::string& tensor : group) {
        if (inside(tensor)) continue;
        const auto holder =
            std::find_if(open.begin(), open.end(), [&](const TreeEntry& e) { return is_inside(tensor, e.name); });
        if (holder == open.end()) continue;  // it has a device already
        ties.tensors.push_back(tensor);
        ties.entries.push_back(*holder);
        // The shared tensor counts once, under its first name, wherever that is.
        ties.extra_bytes += sizes_.at(holder->name);
      }
    }
    return ties;
  }

  void step(const TreeEntry& entry) {
    std::erase_if(largest_.names, [&](const std::string& name) { return is_inside(name, entry.name); });
    if (largest_.names.empty()) refresh_largest();
    const double size = sizes_.at(entry.name);
    const Ties ties = ties_of(entry.name, open_);
    Filled& device = devices_[current_];
    const double reserve = device.is_main ? largest_.bytes : 0;
    const double limit = device.limit - reserve;
    const double with_ties = size + ties.extra_bytes;

    if (device.is_disk() || device.used + with_ties <= limit) return assign(entry, ties, with_ties, device);
    if (!ties.tensors.empty() && device.used + size <= limit && split_tied(entry, ties)) return;
    if (device.used + size >= limit && can_split(entry, options_.no_split_module_classes)) {
      log_line("splitting ", entry.name, ": ", size, " bytes, ", limit - device.used, " left on ",
               device_text(device.device));
      prepend(split_entry(entry));
      return refresh_largest();
    }
    // Once for each entry until something is placed: two entries that are tied would take turns for ever.
    if (device.used == 0 && options_.fallback_allocation && fell_back_.insert(entry.name).second &&
        fall_back(entry, device.limit - std::max(largest_.bytes, with_ties))) {
      return;
    }
    if (device.used == 0) result_.minimum_memory.emplace_back(device.device, with_ties + reserve);
    log_line(device_text(device.device), " is full for ", entry.name, " (", with_ties,
             " bytes); going to the next device");
    device.used += reserve;
    ++current_;
    fell_back_.clear();
    prepend({entry});
  }

  void assign(const TreeEntry& entry, const Ties& ties, double bytes, Filled& device) {
    log_line("putting ", entry.name, " (", bytes, " bytes) on ", device_text(device.device));
    device.used += bytes;
    fell_back_.clear();
    result_.device_map.set(entry.name, device.device);
    for (const TreeEntry& tied : ties.entries) {
      std::erase_if(open_, [&](const TreeEntry& other) { return other.name == tied.name; });
      result_.device_map.set(tied.name, device.device);
    }
    if (!options_.offload_buffers && entry.module != nullptr) {
      device.buffers += compute_module_total_buffer_size(ModuleTree{entry.module}, options_.sizes);
    }
  }

  bool split_tied(const TreeEntry& entry, const Ties& ties) {
    for (const TreeEntry& tied : ties.entries) {
      if (!can_split(tied, options_.no_split_module_classes)) continue;
      log_line("splitting ", tied.name, ", which is tied to ", entry.name);
      replace(open_, tied);
      prepend({entry});
      refresh_largest();
      return true;
    }
    return false;
  }

  // Puts a smaller entry first where nothing fits an empty device.
  bool fall_back(const TreeEntry& entry, double limit) {
    std::deque<TreeEntry> search(open_.begin(), open_.end());
    std::vector<TreeEntry> passed{entry};  // too large, and perhaps tied to what follows
    while (!search.empty()) {
      const TreeEntry candidate = search.front();
      search.pop_front();
      std::vector<TreeEntry> others = passed;
      others.insert(others.end(), search.begin(), search.end());
      const Ties ties = ties_of(candidate.name, others);
      if (sizes_.at(candidate.name) + ties.extra_bytes <= limit) {
        take_out(candidate);
        prepend({candidate, entry});
        return true;
      }
      if (!can_split(candidate, options_.no_split_module_classes)) {
        passed.push_back(candidate);
        continue;
      }
      const auto parts = split_entry(candidate);
      search.insert(search.begin(), parts.begin(), parts.end());
    }
    return false;
  }

  // Removes an entry from the open ones. Entries that contain it are split until it is alone.
  void take_out(const TreeEntry& requested) {
    for (;;) {
      const auto holder = std::find_if(open_.begin(), open_.end(),
                                       [&](const TreeEntry& e) { return is_inside(requested.name, e.name); });
      if (holder == open_.end()) return;
      if (holder->name == requested.name) {
        open_.erase(holder);
        return;
      }
      replace(open_, TreeEntry(*holder));
    }
  }

  static void replace(std::vector<TreeEntry>& open, const TreeEntry& entry) {
    const auto place =
        std::find_if(open.begin(), open.end(), [&](const TreeEntry& other) { return other.name == entry.name; });
    const auto parts = split_entry(entry);
    open.insert(open.erase(place), parts.begin(), parts.end());
  }

  void prepend(const std::vector<TreeEntry>& entries) { open_.insert(open_.begin(), entries.begin(), entries.end()); }

  bool buffers_fit_nowhere() const {
    if (options_.offload_buffers) return false;
    double buffers = 0;
    bool has_accelerator = false, fits = false;
    for (const Filled& filled : devices_) {
      if (!filled.is_accelerator()) buffers += filled.buffers;
    }
    for (const Filled& filled : devices_) {
      if (!filled.is_accelerator()) continue;
      has_accelerator = true;
      fits = fits || filled.limit >= buffers + filled.used;
    }
    return buffers > 0 && has_accelerator && !fits;
  }

  const InferOptions& options_;
  ModuleSizes sizes_;
  std::vector<std::vector<std::string>> tied_;
  std::vector<TreeEntry> open_;
  std::vector<Filled> devices_;
  LargestLayer largest_;
  size_t current_ = 0;
  std::set<std::string> fell_back_;  ///< entries that gave way to a smaller one since the last was placed
  InferredMap result_;
};

}  // namespace

InferredMap infer_auto_device_map(const ModuleTree& tree, const MemoryLimits& limits, const InferOptions& options) {
  return Search(tree, limits, options).run();
}

}  // namespace hasten::plan
