#include "program/profile.h"

#include <algorithm>
#include <utility>

namespace twostroke {

void Profile::end_section(size_t section) {
  const Clock::time_point now = Clock::now();
  totals_[section].seconds += std::chrono::duration<double>(now - mark_).count();
  totals_[section].calls++;
  mark_ = now;
}

std::vector<ProfileLine> Profile::take(const std::vector<Section>& sections) {
  std::vector<ProfileLine> lines;
  for (size_t i = 0; i < sections.size(); i++) {
    const Total total = std::exchange(totals_[i], {});
    if (!total.calls) continue;
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const ProfileLine& l) { return l.label == sections[i].label; });
    if (line == lines.end()) line = lines.insert(line, {sections[i].label, 0, 0});
    line->seconds += total.seconds;
    line->calls += total.calls;
  }
  return lines;
}

}  // namespace twostroke
