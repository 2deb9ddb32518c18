// SPDX-License-Identifier: Apache-2.0
// Three levels of bits for each class.
#include "placement/length_classes.hpp"

#include <new>

namespace weir { inline namespace v0 { namespace placement {

bool length_classes::prepare(std::uint64_t cell) noexcept {
  const std::uint64_t chunk = cell / fan;
  const std::uint64_t group = chunk / fan;
  try {
    if (tops_.size() <= group / fan) tops_.resize(group / fan + 1);
    if (groups_.size() <= group) groups_.resize(group + 1);
    if (groups_[group] == nullptr) groups_[group] = std::make_unique<node>();
    if (chunks_.size() <= chunk) chunks_.resize((group + 1) * fan);
    if (chunks_[chunk] == nullptr) chunks_[chunk] = std::make_unique<node>();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void length_classes::forget(std::size_t in, std::uint64_t cell) noexcept {
  const std::uint64_t chunk = cell / fan;
  if ((chunks_[chunk]->has[in] &= ~bit(cell)) != 0) return;
  if ((groups_[chunk / fan]->has[in] &= ~bit(chunk)) != 0) return;
  tops_[chunk / fan / fan].has[in] &= ~bit(chunk / fan);
  if (first(in) == no_cell) any_[in / fan] &= ~bit(in);
}

std::uint64_t length_classes::first(std::size_t in, std::uint64_t from) const noexcept {
  const auto cell_in = [&](std::uint64_t chunk) {
    return chunk * fan + lowest(chunks_[chunk]->has[in]);
  };
  const auto chunk_in = [&](std::uint64_t group) {
    return group * fan + lowest(groups_[group]->has[in]);
  };
  std::uint64_t chunk = 0;
  std::uint64_t group = 0;
  if (from != 0) {
    chunk = from / fan;
    if (chunk < chunks_.size() && chunks_[chunk] != nullptr)
      if (const std::uint64_t cells = since(chunks_[chunk]->has[in], from); cells != 0)
        return chunk * fan + lowest(cells);
    group = ++chunk / fan;
    if (group < groups_.size() && groups_[group] != nullptr)
      if (const std::uint64_t chunks = since(groups_[group]->has[in], chunk); chunks != 0)
        return cell_in(group * fan + lowest(chunks));
    ++group;
  }
  for (std::uint64_t top = group / fan; top < tops_.size(); ++top, group = 0)
    if (const std::uint64_t groups = since(tops_[top].has[in], group); groups != 0)
      return cell_in(chunk_in(top * fan + lowest(groups)));
  return no_cell;
}

std::size_t length_classes::footprint() const noexcept {
  std::size_t total = (chunks_.capacity() + groups_.capacity()) * sizeof(chunks_[0]) +
                      tops_.capacity() * sizeof(node);
  for (const auto& each : chunks_) total += each == nullptr ? 0 : sizeof(node);
  for (const auto& each : groups_) total += each == nullptr ? 0 : sizeof(node);
  return total;
}

}}}  // namespace weir::v0::placement
