export {barY, cell, dot, frame, groupX, line, link, plot, rect, ruleY, text, tip} from "@observablehq/plot";
