// See image_writer.h.
#include "tracking/journal/image_writer.h"

#include <fstream>
#include <stdexcept>

#include "hasten/core/text.h"
#include "tracking/journal/json.h"
#include "tracking/journal/png.h"

namespace hasten::tracking {

ImageWriter::ImageWriter(std::filesystem::path run_folder, int64_t most_bytes,
                         std::function<void(std::string)> write_line, std::function<void(const std::string&)> warn)
    : folder_(std::move(run_folder)),
      most_bytes_(most_bytes),
      write_line_(std::move(write_line)),
      warn_(std::move(warn)),
      thread_([this] { run(); }) {}

ImageWriter::~ImageWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ImageWriter::push(ImageJob job) {
  int64_t size = job.num_bytes;
  for (const auto& [key, images] : job.images) size += images.pending()->num_bytes();
  bool dropped = false;
  {
    const std::lock_guard lock(mutex_);
    num_bytes_ += size;
    jobs_.emplace_back(std::move(job), size);
    while (num_bytes_ > most_bytes_ && jobs_.size() > 1) {
      num_bytes_ -= jobs_.front().second;
      jobs_.pop_front();
      dropped = !said_dropped_;
      said_dropped_ = true;
    }
  }
  changed_.notify_all();
  if (dropped) {
    warn_(text("images are logged faster than they can be written; the oldest beyond ", most_bytes_,
               " bytes are dropped. Log fewer, or raise AcceleratorOptions.tracking.image_memory_bytes."));
  }
}

void ImageWriter::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
}

void ImageWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto [job, size] = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    try {
      write(job);
    } catch (const std::exception& error) {
      warn_(text("images of step ", job.step, " are lost: ", error.what()));
    }
    lock.lock();
    num_bytes_ -= size;
    busy_ = false;
    changed_.notify_all();
  }
}

std::string ImageWriter::file_name(const std::string& key, int64_t step, size_t index) {
  std::string name;
  for (const char letter : key.substr(0, 100)) {
    const auto byte = static_cast<unsigned char>(letter);
    name += std::isalnum(byte) || letter == '-' || letter == '.' ? letter : '_';
  }
  if (name.empty() || name.front() == '.') name = text("_", name);
  return text(name, '-', step, '-', counter_++, '-', index, ".png");
}

void ImageWriter::write(const ImageJob& job) {
  std::filesystem::create_directories(folder_ / "media");
  if (job.write) {
    std::string line;
    append_json(line, job.write(folder_));
    return write_line_(line + "\n");
  }
  core::Value paths = core::Value::map();
  for (const auto& [key, images] : job.images) {
    core::Value list = core::Value::list();
    size_t index = 0;
    for (const Image& image : images.pending()->take()) {
      std::string name = "media/" + file_name(key, job.step, index++);
      const std::string png = encode_png(image);
      std::ofstream file(folder_ / name, std::ios::binary);
      file.write(png.data(), static_cast<std::streamsize>(png.size()));
      file.close();
      if (!file) throw std::runtime_error(text(folder_ / name, " cannot be written"));
      list.push_back(std::move(name));
    }
    paths[key] = std::move(list);
  }
  core::Value record = core::Value::map({{"op", "images"}, {"t", job.time_s}, {"step", job.step}, {"images", paths}});
  if (!job.kwargs.is_null() && !job.kwargs.empty()) record["kwargs"] = job.kwargs;
  std::string line;
  append_json(line, record);
  write_line_(line + "\n");
}

}  // namespace hasten::tracking
