//! Pictures: the shapes of an SVG, with coordinates of one decimal.

use maud::{Markup, html};

/// A point: the distances from the left and from the top.
pub type Point = (f64, f64);

/// A width and a height.
pub type Size = (f64, f64);

/// A picture of this size, which grows with the page. Screen readers read the title.
pub fn svg(class: &str, (width, height): Size, title: &str, shapes: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class=(class) role="img" aria-label=(title)
            viewBox={ "0 0 " (px(width)) " " (px(height)) } {
            (shapes)
        }
    }
}

/// A rectangle, which is never too small to be visible.
pub fn rect(class: &str, (x, y): Point, (width, height): Size) -> Markup {
    let (width, height) = (px(width.max(0.1)), px(height.max(0.1)));
    html! { rect class=(class) x=(px(x)) y=(px(y)) width=(width) height=(height) {} }
}

/// A straight line.
pub fn line(class: &str, from: Point, to: Point) -> Markup {
    html! { line class=(class) x1=(px(from.0)) y1=(px(from.1)) x2=(px(to.0)) y2=(px(to.1)) {} }
}

/// A text that starts at this point; with the class `middle` or `end`, the point is its middle or
/// its end.
pub fn text(class: &str, (x, y): Point, words: &str) -> Markup {
    html! { text class=(class) x=(px(x)) y=(px(y)) { (words) } }
}

/// A dot that is large enough to point at.
pub fn dot(class: &str, (x, y): Point) -> Markup {
    html! { circle class=(class) cx=(px(x)) cy=(px(y)) r="3" {} }
}

/// A path through the points of each piece; a closed path can be filled.
pub fn path<P: IntoIterator<Item = Point>>(
    class: &str,
    pieces: impl IntoIterator<Item = P>,
    is_closed: bool,
) -> Markup {
    let mut drawn = String::new();
    for piece in pieces {
        for (at, (x, y)) in piece.into_iter().enumerate() {
            let letter = if at == 0 { 'M' } else { 'L' };
            drawn.push_str(&format!("{letter}{} {}", px(x), px(y)));
        }
    }
    if is_closed {
        drawn.push('Z');
    }
    html! { @if !drawn.is_empty() { path class=(class) d=(drawn) {} } }
}

/// Shapes with a title that appears when the pointer is over them.
pub fn titled(shapes: &Markup, title: &str) -> Markup {
    html! { g.b { (shapes) title { (title) } } }
}

/// A coordinate with one decimal. Not a number becomes 0, which is visible in a picture.
fn px(place: f64) -> f64 {
    debug_assert!(place.is_finite(), "a place in a picture is a number");
    if place.is_finite() {
        (place * 10.0).round() / 10.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_short() {
        assert_eq!(px(12.345).to_string(), "12.3");
        assert_eq!(px(-0.01).to_string().trim_start_matches('-'), "0");
        let drawn = path("p", [vec![(0.0, 1.04), (2.0, 3.0)], vec![(5.0, 6.0)]], true);
        let expected = "<path class=\"p\" d=\"M0 1L2 3M5 6Z\"></path>";
        assert_eq!(drawn.into_string(), expected);
    }
}
