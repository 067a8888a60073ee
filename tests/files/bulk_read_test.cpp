// Reading many boxes at once: equal to the tensors whatever the pieces and the boxes, shared by several ranks, hashed.
#include "hasten/files/folders/bulk_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/safetensors_source.h"

namespace hasten::files {
namespace {

using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

struct Saved {
  Manifest manifest;
  std::vector<std::string> bytes;  // of each tensor
};

// Tensors of random shapes, each cut along dim 0 into pieces that lie in `num_files` files.
Saved save_random(const std::string& folder, std::mt19937& random, const std::vector<std::vector<int64_t>>& shapes,
                  size_t num_files) {
  Saved saved;
  std::vector<std::vector<TensorInfo>> infos(num_files);
  std::vector<std::vector<std::pair<size_t, Box>>> boxes(num_files);
  for (size_t t = 0; t < shapes.size(); ++t) {
    const TensorInfo info{text("t", t), Dtype::kInt16, shapes[t]};
    std::string bytes(static_cast<size_t>(bytes_of(info)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    saved.bytes.push_back(std::move(bytes));
    saved.manifest.tensors.push_back({.info = info});
    for (int64_t at = 0; at < std::max<int64_t>(shapes[t].empty() ? 1 : shapes[t][0], 1);) {
      Box box = whole_box(shapes[t]);
      if (!shapes[t].empty()) {
        box.offset[0] = at;
        box.size[0] = std::min<int64_t>(1 + static_cast<int64_t>(random() % 3) * shapes[t][0] / 2, shapes[t][0] - at);
        at += std::max<int64_t>(box.size[0], 1);
      } else {
        ++at;
      }
      const size_t file = random() % num_files;
      infos[file].push_back({text("t", t, ".", infos[file].size()), Dtype::kInt16, box.size});
      boxes[file].emplace_back(t, box);
    }
  }
  for (size_t f = 0; f < num_files; ++f) {
    const SafetensorsLayout layout = lay_out_safetensors(infos[f], {});
    std::string bytes = layout.head;
    bytes.resize(layout.file_bytes);
    for (size_t i = 0; i < boxes[f].size(); ++i) {
      const auto& [t, box] = boxes[f][i];
      std::string part(static_cast<size_t>(numel_of(box)) * 2, '\0');
      copy_common(saved.bytes[t].data(), whole_box(shapes[t]), part.data(), box, 2);
      bytes.replace(layout.offsets[i], part.size(), part);
      saved.manifest.tensors[t].pieces.push_back({f, box, core::xxh3_128(part), layout.offsets[i]});
    }
    saved.manifest.files.push_back({text("f", f, ".safetensors"), bytes.size(), core::xxh3_128(layout.head)});
    write_file(real_disk(), folder + "/" + saved.manifest.files.back().name, bytes);
  }
  return saved;
}

BulkTarget into(std::string& memory, const std::string& name, Box box) {
  memory.assign(static_cast<size_t>(numel_of(box)) * 2, '\0');
  return {{name, std::move(box)}, [&memory] { return memory.data(); }, {}};
}

// A random box inside a shape.
Box random_box(const std::vector<int64_t>& shape, std::mt19937& random) {
  Box box;
  for (const int64_t size : shape) {
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    box.offset.push_back(begin);
    box.size.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(size - begin)));
  }
  return box;
}

TEST(BulkRead, AnyBoxesAreReadFromAnyPieces) {
  const auto seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    const ScratchFolder folder;
    const std::vector<std::vector<int64_t>> shapes{{7, 5, 3}, {64}, {}, {1, 9}, {300, 41}};
    const Saved saved = save_random(folder.path(), random, shapes, 1 + random() % 3);
    std::vector<std::string> got(2 * shapes.size());
    std::vector<BulkTarget> targets;
    for (size_t t = 0; t < shapes.size(); ++t) {
      targets.push_back(into(got[2 * t], text("t", t), whole_box(shapes[t])));
      targets.push_back(into(got[2 * t + 1], text("t", t), random_box(shapes[t], random)));
    }

    const BulkReport report = read_boxes(saved.manifest, folder.path(), targets);

    EXPECT_THAT(report.damaged, SizeIs(0));
    for (size_t t = 0; t < shapes.size(); ++t) {
      EXPECT_EQ(got[2 * t], saved.bytes[t]);
      std::string part(got[2 * t + 1].size(), '\0');
      copy_common(saved.bytes[t].data(), whole_box(shapes[t]), part.data(), targets[2 * t + 1].want.box, 2);
      EXPECT_EQ(got[2 * t + 1], part) << describe(targets[2 * t + 1].want.box);
    }
  }
}

// Larger than one part, so that boxes are cut and hashes go over several reads.
TEST(BulkRead, LargeTensorsAreCutAndHashedAcrossParts) {
  std::mt19937 random(3);
  const ScratchFolder folder;
  const std::vector<std::vector<int64_t>> shapes{{3000, 2000}, {2, 5'000'000}};
  const Saved saved = save_random(folder.path(), random, shapes, 1);
  std::vector<std::string> got(3);
  const std::vector<BulkTarget> targets{into(got[0], "t0", whole_box(shapes[0])),
                                        into(got[1], "t1", whole_box(shapes[1])),
                                        into(got[2], "t0", Box{{5, 700}, {2900, 600}})};

  const BulkReport report = read_boxes(saved.manifest, folder.path(), targets);

  EXPECT_EQ(got[0], saved.bytes[0]);
  EXPECT_EQ(got[1], saved.bytes[1]);
  std::string part(got[2].size(), '\0');
  copy_common(saved.bytes[0].data(), whole_box(shapes[0]), part.data(), targets[2].want.box, 2);
  EXPECT_EQ(got[2], part);
  EXPECT_EQ(report.pieces_verified, saved.manifest.tensors[0].pieces.size() + saved.manifest.tensors[1].pieces.size());
}

TEST(BulkRead, RanksThatShareReadEachByteOnce) {
  constexpr int kRanks = 3;
  std::mt19937 random(4);
  const ScratchFolder folder;
  const std::vector<std::vector<int64_t>> shapes{{3000, 2000}, {70}, {4'000'000}};
  const Saved saved = save_random(folder.path(), random, shapes, 2);
  std::vector<std::vector<std::string>> got(kRanks, std::vector<std::string>(shapes.size()));
  std::vector<BulkReport> reports(kRanks);
  std::barrier together(kRanks);
  std::vector<char*> buffers(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      std::vector<BulkTarget> targets;
      for (size_t t = 0; t < shapes.size(); ++t)
        targets.push_back(into(got[rank][t], text("t", t), whole_box(shapes[t])));
      const auto gather = [&](char* parts, size_t part_bytes) {
        buffers[static_cast<size_t>(rank)] = parts;
        together.arrive_and_wait();
        for (size_t other = 0; other < kRanks; ++other) {
          if (static_cast<int>(other) != rank)
            std::memcpy(parts + other * part_bytes, buffers[other] + other * part_bytes, part_bytes);
        }
        together.arrive_and_wait();
      };
      reports[static_cast<size_t>(rank)] =
          read_boxes(saved.manifest, folder.path(), targets, {.share = {rank, kRanks, gather}});
    });
  }
  for (auto& rank : ranks) rank.join();

  uint64_t read = 0, verified = 0, all = 0, pieces = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(got[rank], saved.bytes);
    EXPECT_GT(reports[rank].bytes_read, 0u);
    read += reports[rank].bytes_read;
    verified += reports[rank].pieces_verified;
  }
  for (const auto& bytes : saved.bytes) all += bytes.size();
  for (const auto& tensor : saved.manifest.tensors) pieces += tensor.pieces.size();
  EXPECT_GE(read, all);
  EXPECT_LT(read, all + all / 100);  // and small gaps between pieces
  EXPECT_EQ(verified, pieces);
}

TEST(BulkRead, ADamagedPieceIsNamed) {
  std::mt19937 random(5);
  const ScratchFolder folder;
  const Saved saved = save_random(folder.path(), random, {{50, 4}}, 1);
  std::fstream file(folder / "f0.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(saved.manifest.tensors[0].pieces[0].position));
  file.put(static_cast<char>(saved.bytes[0][0] ^ 1));
  file.close();
  std::string got;
  const std::vector<BulkTarget> targets{into(got, "t0", whole_box(std::vector<int64_t>{50, 4}))};

  EXPECT_THAT(read_boxes(saved.manifest, folder.path(), targets).damaged,
              ::testing::ElementsAre(HasSubstr("tensor 't0' [0:")));
  EXPECT_THAT(read_boxes(saved.manifest, folder.path(), targets, {.verify = false}).damaged, SizeIs(0));
  std::filesystem::resize_file(folder / "f0.safetensors", 100);
  EXPECT_THAT([&] { read_boxes(saved.manifest, folder.path(), targets); },
              ThrowsMessage<DataError>(HasSubstr("it has 100 bytes")));
}

TEST(BulkRead, TensorsOfASourceAreFoundInTheirFiles) {
  const ScratchFolder folder;
  const SafetensorsLayout layout = lay_out_safetensors({{"a", Dtype::kInt16, {3}}}, {});
  std::string bytes = layout.head;
  bytes.resize(layout.file_bytes);
  bytes.replace(layout.offsets[0], 6, "abcdef");
  write_file(real_disk(), folder / "m.safetensors", bytes);
  files::testing::MemorySource memory;
  memory.add("x", {1}, {1.0f});
  std::vector<std::string> left_out;
  std::string got;

  const Manifest manifest = manifest_of_source(*open_safetensors(folder / "m.safetensors"), left_out);
  read_boxes(manifest, {}, {into(got, "a", whole_box(std::vector<int64_t>{3}))}, {.verify = false});
  manifest_of_source(memory, left_out);

  EXPECT_EQ(got, "abcdef");
  EXPECT_THAT(left_out, ::testing::ElementsAre("x"));
}

}  // namespace
}  // namespace hasten::files
